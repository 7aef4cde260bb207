#include "cache/entries/entry.hpp"

#include <array>
#include <limits>

#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using testing::bytes_of;
using testing::kKey;
using testing::kOtherKey;

const Version kGoldenVersion{13, 2, 0x0102};

Entry golden_entry() { return {.metadata = R"({"a":1})", .payload = bytes_of("CUBIN")}; }

// Written out by hand from FORMAT.md; the checksum is what Python's xxhash says of the bytes before it.
constexpr std::array<unsigned char, 92> kGolden = {
    0x89, 'A',  'S',  'C',  'E',  0x0d, 0x0a, 0x1a,  // magic
    0x01, 0x00, 0x00, 0x00,                          // format
    0x00, 0x00, 0x00, 0x00,                          // reserved
    0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10,  // key
    0x0d, 0x00, 0x00, 0x00,                                                                          // major
    0x02, 0x00, 0x00, 0x00,                                                                          // minor
    0x02, 0x01, 0x00, 0x00,                                                                          // build
    0x00, 0x00, 0x00, 0x00,                          // reserved
    0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // metadata
    0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // payload
    '{',  '"',  'a',  '"',  ':',  '1',  '}',         // metadata
    'C',  'U',  'B',  'I',  'N',                     // payload
    0x42, 0xb1, 0xd5, 0xb9, 0x01, 0x3d, 0x28, 0x03, 0x07, 0x61, 0x0e, 0x14, 0x71, 0x8e, 0x5a, 0xe0};

std::vector<std::byte> golden_bytes() {
    const auto bytes = std::as_bytes(std::span(kGolden));
    return {bytes.begin(), bytes.end()};
}

const DecodedEntry* decoded(const DecodeResult& result) { return std::get_if<DecodedEntry>(&result); }

DecodeFailureKind failure_kind(const DecodeResult& result) {
    const auto* failure = std::get_if<DecodeFailure>(&result);
    REQUIRE(failure != nullptr);
    CHECK_FALSE(failure->reason.empty());
    return failure->kind;
}

// The bytes with a checksum that fits them, as a careful forger or another release would leave them.
std::vector<std::byte> with_right_checksum(std::vector<std::byte> bytes) {
    const std::size_t covered = bytes.size() - Digest::kBytes;
    const std::string hex = digest_of(std::span<const std::byte>(bytes).first(covered)).hex();
    for (std::size_t i = 0; i < Digest::kBytes; ++i) {
        bytes[covered + i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    }
    return bytes;
}

std::vector<std::byte> golden_with(std::size_t at, std::initializer_list<int> values) {
    auto bytes = golden_bytes();
    for (const int value : values) bytes[at++] = static_cast<std::byte>(value);
    return with_right_checksum(bytes);
}

}  // namespace

TEST_CASE("Version: text and parse are each other's inverse", "[cache][entry]") {
    for (const Version version :
         {Version{0, 0, 0}, Version{13, 0, 88}, Version{1, 2, std::numeric_limits<int>::max()}}) {
        CHECK(Version::parse(version.to_string()) == version);
    }
    CHECK(Version{13, 0, 88}.to_string() == "13.0.88");
}

TEST_CASE("Version: parse takes nothing that to_string does not write", "[cache][entry]") {
    for (const char* text :
         {"", "13", "13.0", "13.0.", "13.0.88.1", ".0.88", "13..88", "-1.0.0", "1.-1.0", "+1.0.0", "01.0.0",
          "1.00.0", " 1.0.0", "1.0.0 ", "1.0.x", "1.0.2147483648", "a.b.c"}) {
        INFO(text);
        CHECK_FALSE(Version::parse(text));
    }
}

TEST_CASE("Version: is ordered by number, not by text", "[cache][entry]") {
    CHECK(Version{9, 0, 0} < Version{13, 0, 0});
    CHECK(Version{13, 0, 88} < Version{13, 0, 100});
    CHECK(Version{13, 2, 0} > Version{13, 1, 999});
}

TEST_CASE("Entry: its bytes are the golden ones", "[cache][entry]") {
    CHECK(encode_entry(kKey, kGoldenVersion, golden_entry()) == golden_bytes());
}

TEST_CASE("Entry: the golden bytes are read", "[cache][entry]") {
    const auto result = decode_entry(golden_bytes(), kKey);
    REQUIRE(decoded(result) != nullptr);
    CHECK(decoded(result)->entry == golden_entry());
    CHECK(decoded(result)->version == kGoldenVersion);
}

TEST_CASE("Entry: what is encoded is decoded, whatever its size", "[cache][entry]") {
    for (const std::size_t size : {0, 1, 15, 16, 17, 239, 240, 241, 1023, 1024, 1025, 100'000}) {
        const Entry entry{.metadata = R"({"n":")" + std::string(size, 'm') + R"("})",
                          .payload = std::vector<std::byte>(size, std::byte{0xa5})};
        const auto result = decode_entry(encode_entry(kKey, kGoldenVersion, entry), kKey);
        REQUIRE(decoded(result) != nullptr);
        CHECK(decoded(result)->entry == entry);
    }
}

TEST_CASE("Entry: every other value of every byte is noticed", "[cache][entry]") {
    const auto good = golden_bytes();
    std::size_t accepted = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (int flip = 1; flip < 256; ++flip) {
            auto bytes = good;
            bytes[at] ^= static_cast<std::byte>(flip);
            const auto result = decode_entry(bytes, kKey);
            accepted += decoded(result) != nullptr ? 1 : 0;
            // Only whole entries may pass for another release's, and a flip leaves none whole.
            const auto* failure = std::get_if<DecodeFailure>(&result);
            accepted += failure != nullptr && !failure->broken() ? 1 : 0;
        }
    }
    CHECK(accepted == 0);
}

TEST_CASE("Entry: every truncation is noticed", "[cache][entry]") {
    const auto good = golden_bytes();
    for (std::size_t size = 0; size < good.size(); ++size) {
        INFO(size);
        CHECK(failure_kind(decode_entry(std::span(good).first(size), kKey)) == DecodeFailureKind::truncated);
    }
}

TEST_CASE("Entry: bytes after its end are noticed", "[cache][entry]") {
    auto bytes = golden_bytes();
    bytes.push_back(std::byte{0});
    CHECK(failure_kind(decode_entry(bytes, kKey)) == DecodeFailureKind::truncated);
}

TEST_CASE("Entry: zeros where the data never reached the disk are noticed", "[cache][entry]") {
    const auto good = golden_bytes();
    for (std::size_t from = 0; from < good.size() - 1; ++from) {
        auto bytes = good;
        std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes.end(), std::byte{0});
        CHECK(decoded(decode_entry(bytes, kKey)) == nullptr);
    }
    CHECK(failure_kind(decode_entry(std::vector<std::byte>(4096), kKey)) == DecodeFailureKind::not_an_entry);
}

TEST_CASE("Entry: another key's entry is not taken", "[cache][entry]") {
    CHECK(failure_kind(decode_entry(golden_bytes(), kOtherKey)) == DecodeFailureKind::wrong_key);
}

TEST_CASE("Entry: another format version is skipped and not called broken", "[cache][entry]") {
    for (const int format : {0, 2, 255}) {
        const auto result = decode_entry(golden_with(8, {format}), kKey);
        CHECK(failure_kind(result) == DecodeFailureKind::other_format);
        CHECK_FALSE(std::get<DecodeFailure>(result).broken());
    }
}

TEST_CASE("Entry: reserved fields and version parts out of range are refused, the checksum being right",
          "[cache][entry]") {
    CHECK(failure_kind(decode_entry(golden_with(12, {1}), kKey)) == DecodeFailureKind::corrupt);
    CHECK(failure_kind(decode_entry(golden_with(47, {1}), kKey)) == DecodeFailureKind::corrupt);
    CHECK(failure_kind(decode_entry(golden_with(35, {0x80}), kKey)) == DecodeFailureKind::corrupt);
}

TEST_CASE("Entry: lengths that lie are refused, the checksum being right", "[cache][entry]") {
    const auto kinds = {golden_with(48, {8}), golden_with(56, {4}), golden_with(55, {0xff}),
                        golden_with(63, {0xff}),
                        // Their sum wraps around to the right one.
                        golden_with(48, {8, 0, 0, 0, 0, 0, 0, 0, 4}),
                        golden_with(48, {0x0c, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x80})};
    std::size_t refused = 0;
    for (const auto& bytes : kinds) refused += decoded(decode_entry(bytes, kKey)) == nullptr ? 1 : 0;
    // The fifth only moves a byte from the payload to the metadata: a true entry, if a strange one.
    CHECK(refused == kinds.size() - 1);
}

TEST_CASE("Entry: its header can be read alone", "[cache][entry]") {
    const auto bytes = golden_bytes();
    const auto header = decode_entry_header(std::span(bytes).first(kEntryHeaderBytes));
    REQUIRE(header);
    CHECK(header->key == kKey);
    CHECK(header->version == kGoldenVersion);
    CHECK(header->metadata_bytes == 7);
    CHECK(header->payload_bytes == 5);
    CHECK_FALSE(decode_entry_header(std::span(bytes).first(kEntryHeaderBytes - 1)));
    CHECK_FALSE(decode_entry_header(golden_with(8, {2})));
    CHECK_FALSE(decode_entry_header(golden_with(55, {1})));
}

}  // namespace attnsmith::cache
