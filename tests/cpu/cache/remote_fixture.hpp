// An entry that says what its key is of, as a remote layer wants it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "cache/fixture.hpp"
#include "cache/remote/manifest.hpp"

namespace attnsmith::cache::testing {

struct Remembered {
    explicit Remembered(std::string name = "attention", std::string target = "sm_90a") {
        FieldHasher fields;
        fields.add("name", name).add("target", target);
        key = fields.digest();
        entry.metadata = fmt::format(R"({{"name":"{}","key_fields":{}}})", name, fields.fields_json());
        entry.payload = bytes_of("the machine code of " + name);
    }

    std::vector<std::byte> bytes() const { return encode_entry(key, kVersion, entry); }
    Manifest manifest() const { return manifest_of(key, kVersion, entry, bytes()).value(); }

    Digest key;
    Entry entry;
};

}  // namespace attnsmith::cache::testing
