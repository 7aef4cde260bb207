#include "cache/bundle/tar.hpp"

#include <cstring>

#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

constexpr const char* kName = "manifest.json";

std::string text_at(const tar::Block& block, std::size_t offset, std::size_t bytes) {
    return {reinterpret_cast<const char*>(block.data()) + offset, bytes};
}

std::string refusal(const tar::Block& block) {
    const auto decoded = tar::decode_header(block);
    const auto* refused = std::get_if<tar::Refusal>(&decoded);
    return refused == nullptr ? "taken" : refused->reason;
}

// The header with a field changed and the checksum made right again, as a forger would.
tar::Block forged(std::size_t offset, std::string_view bytes) {
    tar::Block block = tar::encode_header(kName, 5);
    std::memcpy(block.data() + offset, bytes.data(), bytes.size());
    std::memset(block.data() + 148, ' ', 8);
    unsigned sum = 0;
    for (const std::byte byte : block) sum += std::to_integer<unsigned>(byte);
    char text[8];
    std::snprintf(text, sizeof text, "%06o", sum);
    std::memcpy(block.data() + 148, text, 7);
    return block;
}

}  // namespace

TEST_CASE("a header has the fields of ustar") {
    const tar::Block block = tar::encode_header(kName, 0123);
    CHECK(text_at(block, 0, 14) == std::string("manifest.json\0", 14));
    CHECK(text_at(block, 100, 24) == std::string("0000644\0"
                                                 "0000000\0"
                                                 "0000000\0",
                                                 24));
    CHECK(text_at(block, 124, 24) == std::string("00000000123\0"
                                                 "00000000000\0",
                                                 24));
    CHECK(text_at(block, 156, 1) == "0");
    CHECK(text_at(block, 257, 8) == std::string("ustar\0"
                                                "00",
                                                8));
    CHECK(text_at(block, 345, 167) == std::string(167, '\0'));
    const auto decoded = tar::decode_header(block);
    const auto* header = std::get_if<tar::Header>(&decoded);
    REQUIRE(header != nullptr);
    CHECK(header->name == kName);
    CHECK(header->bytes == 0123);
}

TEST_CASE("a directory's header differs in mode and type, and is no file's", "[oci]") {
    const tar::Block block = tar::encode_directory_header("opt/cache/");
    CHECK(text_at(block, 0, 11) == std::string("opt/cache/\0", 11));
    CHECK(text_at(block, 100, 8) == std::string("0000755\0", 8));
    CHECK(text_at(block, 124, 12) == std::string("00000000000\0", 12));
    CHECK(text_at(block, 156, 1) == "5");
    CHECK(refusal(block) == "the type flag \"5\" stands for a directory, not for a regular file");
}

TEST_CASE("the largest name and length go into a header and out of it") {
    const std::string name(tar::kLongestName, 'n');
    const auto decoded = tar::decode_header(tar::encode_header(name, tar::kMaxFileBytes));
    const auto* header = std::get_if<tar::Header>(&decoded);
    REQUIRE(header != nullptr);
    CHECK(header->name == name);
    CHECK(header->bytes == tar::kMaxFileBytes);
}

TEST_CASE("a header with any byte changed is refused") {
    const tar::Block sound = tar::encode_header(kName, 5);
    for (std::size_t at = 0; at < sound.size(); ++at) {
        for (int change = 1; change < 256; ++change) {
            tar::Block flipped = sound;
            flipped[at] ^= static_cast<std::byte>(change);
            const auto decoded = tar::decode_header(flipped);
            if (std::get_if<tar::Header>(&decoded) != nullptr) FAIL("byte " << at << " ^ " << change);
        }
    }
}

TEST_CASE("a forged header is refused with the reason, though its checksum is right") {
    CHECK(refusal(forged(0, kName)) == "taken");
    CHECK(refusal(tar::Block{}) == "there is no ustar header");
    CHECK(refusal(forged(257, "ustar  ")) == "there is no ustar header");
    CHECK(refusal(forged(156, "2")) ==
          "the type flag \"2\" stands for a symbolic link, not for a regular file");
    CHECK(refusal(forged(156, "1")) == "the type flag \"1\" stands for a hard link, not for a regular file");
    CHECK(refusal(forged(156, "5")) == "the type flag \"5\" stands for a directory, not for a regular file");
    CHECK(refusal(forged(156, "x")) ==
          "the type flag \"x\" stands for an extended header, not for a regular file");
    CHECK(refusal(forged(156, std::string(1, '\0'))) ==
          "the type flag \"\\x00\" stands for nothing known here, not for a regular file");
    CHECK(refusal(forged(157, "target")) == "a link is named");
    CHECK(refusal(forged(345, "folder")) == "the name has a prefix");
    CHECK(refusal(forged(0, std::string(1, '\0'))) == "the name is not of 1 to 99 bytes");
    CHECK(refusal(forged(0, std::string(100, 'n'))) == "the name is not of 1 to 99 bytes");
    CHECK(refusal(forged(124, "\x80")) == "the size \"\\x800000000005\\x00\" is not 11 octal digits");
    CHECK(refusal(forged(124, "777777777777")) == "the size \"777777777777\" is not 11 octal digits");
    CHECK(refusal(forged(124, "         5 ")) == "the size \"         5 \\x00\" is not 11 octal digits");
    const std::string other = "a field of the header differs from what it is in every bundle";
    CHECK(refusal(forged(100, "0004755")) == other);
    CHECK(refusal(forged(108, "0001000")) == other);
    CHECK(refusal(forged(136, "00000000001")) == other);
    CHECK(refusal(forged(265, "root")) == other);
    CHECK(refusal(forged(500, "x")) == other);
    CHECK(refusal(forged(20, "after the name's end")) == other);
}

}  // namespace attnsmith::cache
