// Bundles written by hand, sound or forged.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/bundle/tar.hpp"
#include "cache/digest/sha256.hpp"
#include "cache/entries/layout.hpp"
#include "fixture.hpp"

namespace attnsmith::cache::testing {

inline std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One file of an archive: header, content, padding.
inline std::string tar_member(std::string_view name, std::string_view content) {
    std::string text = text_of(tar::encode_header(name, content.size()));
    text += content;
    text.resize(tar::kBlockBytes + tar::padded(content.size()), '\0');
    return text;
}

inline std::string manifest_line(std::string_view path, std::uint64_t bytes, std::uint64_t offset,
                                 std::string_view sha256) {
    return fmt::format(R"({{"path": "{}", "bytes": {}, "offset": {}, "sha256": "{}"}})", path, bytes, offset,
                       sha256);
}

// A bundle whose parts a test may change before they are joined.
struct Forgery {
    struct Part {
        std::string path;
        std::string content;
        std::string path_in_manifest = path;
        std::uint64_t bytes_in_manifest = content.size();
        std::uint64_t offset_is_off_by = 0;
        std::string sha256 = sha256_of(bytes_of(content)).hex();
    };
    std::string schema = "attnsmith.bundle/1";
    std::vector<Part> parts;
    std::string end = std::string(tar::kEndBytes, '\0');
    std::uint64_t manifest_blocks = 0;  // 0: one for each two entries or part of it

    void add(const Digest& key, std::string_view payload, const Version& version = kVersion) {
        parts.push_back({.path = layout::entry_path({key, version}),
                         .content = text_of(encode_entry(key, version, entry_of(payload)))});
    }

    std::string text() const {
        const std::uint64_t blocks = manifest_blocks == 0 ? (parts.size() + 1) / 2 : manifest_blocks;
        std::string members;
        std::string lines;
        for (const Part& part : parts) {
            const std::uint64_t offset =
                tar::kBlockBytes * (2 + blocks) + members.size() + part.offset_is_off_by;
            lines += (lines.empty() ? "\n" : ",\n") +
                     manifest_line(part.path_in_manifest, part.bytes_in_manifest, offset, part.sha256);
            members += tar_member(part.path, part.content);
        }
        const std::string manifest =
            fmt::format("{{\"schema\": \"{}\", \"entries\": [{}\n]}}\n", schema, lines);
        if (tar::padded(manifest.size()) != blocks * tar::kBlockBytes) {
            throw std::runtime_error("this forgery's manifest has another length than thought");
        }
        return tar_member("manifest.json", manifest) + members + end;
    }
};

}  // namespace attnsmith::cache::testing
