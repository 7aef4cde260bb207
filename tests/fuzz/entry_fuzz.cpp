// Any bytes as an entry: what is taken is what an entry of these parts has as its bytes.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cache/entries/entry.hpp"
#include "fuzz/fuzz.hpp"

using namespace attnsmith::cache;

namespace {

void judge(std::span<const std::byte> bytes) {
    const auto header = decode_entry_header(bytes);
    const Digest key = header ? header->key : Digest(1, 2);
    const DecodeResult result = decode_entry(bytes, key);
    if (const auto* decoded = std::get_if<DecodedEntry>(&result)) {
        const std::vector<std::byte> again = encode_entry(key, decoded->version, decoded->entry);
        require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
    }
    const DecodeResult of_other = decode_entry(bytes, Digest(key.high(), ~key.low()));
    require(std::get_if<DecodedEntry>(&of_other) == nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    judge(bytes);
    if (size < kEntryOverheadBytes) return 0;
    // With a right checksum, so that what is behind it is reached.
    std::vector<std::byte> sealed(bytes.begin(), bytes.end());
    const std::string checksum = digest_of(bytes.first(size - Digest::kBytes)).hex();
    for (std::size_t i = 0; i < Digest::kBytes; ++i) {
        const std::string digits = checksum.substr(2 * i, 2);
        sealed[size - Digest::kBytes + i] = static_cast<std::byte>(std::strtoul(digits.c_str(), nullptr, 16));
    }
    judge(sealed);
    return 0;
}
