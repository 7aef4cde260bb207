#include "cache/bundle/tar.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace attnsmith::cache::tar {
namespace {

struct Field {
    std::size_t offset;
    std::size_t bytes;
};

// POSIX.1-1988, 10.1.1.
constexpr Field kName{0, 100};
constexpr Field kMode{100, 8};
constexpr Field kUser{108, 8};
constexpr Field kGroup{116, 8};
constexpr Field kSize{124, 12};
constexpr Field kTime{136, 12};
constexpr Field kChecksum{148, 8};
constexpr Field kTypeFlag{156, 1};
constexpr Field kLinkName{157, 100};
constexpr Field kMagicAndVersion{257, 8};
constexpr Field kMajor{329, 8};
constexpr Field kMinor{337, 8};
constexpr Field kPrefix{345, 155};

constexpr std::string_view kUstarMagic{"ustar\00000", 8};
constexpr char kRegularFile = '0';
constexpr char kDirectory = '5';

void put(Block& block, Field field, std::string_view text) {
    std::memcpy(block.data() + field.offset, text.data(), text.size());
}

std::string_view get(std::span<const std::byte, kBlockBytes> block, Field field) {
    return {reinterpret_cast<const char*>(block.data()) + field.offset, field.bytes};
}

// The sum of all bytes, those of the checksum itself counted as spaces.
std::uint64_t checksum_of(std::span<const std::byte, kBlockBytes> block) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
        const bool in_checksum = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.bytes;
        sum += in_checksum ? ' ' : std::to_integer<std::uint64_t>(block[i]);
    }
    return sum;
}

std::string checksum_text(std::uint64_t sum) { return fmt::format("{:06o}", sum) + std::string("\0 ", 2); }

// 11 octal digits and a NUL: nothing else, neither spaces nor the base-256 of GNU tar.
std::optional<std::uint64_t> parse_size(std::string_view field) {
    const std::string_view digits = field.substr(0, field.size() - 1);
    if (field.back() != '\0' || digits.find_first_not_of("01234567") != digits.npos) return std::nullopt;
    std::uint64_t value = 0;
    for (const char digit : digits) value = value << 3 | static_cast<std::uint64_t>(digit - '0');
    return value;
}

std::string_view meaning_of(char type) {
    switch (type) {
        case '1':
            return "a hard link";
        case '2':
            return "a symbolic link";
        case '3':
        case '4':
            return "a device";
        case '5':
            return "a directory";
        case '6':
            return "a FIFO";
        case 'x':
        case 'g':
            return "an extended header";
        case 'L':
        case 'K':
            return "a long name of GNU tar's";
        case 'S':
            return "a sparse file";
        default:
            return "nothing known here";
    }
}

Block encode(char type, std::string_view mode, std::string_view name, std::uint64_t bytes) {
    Block block{};
    put(block, kName, name);
    put(block, kMode, mode);
    put(block, kUser, "0000000");
    put(block, kGroup, "0000000");
    put(block, kSize, fmt::format("{:011o}", bytes));
    put(block, kTime, "00000000000");
    put(block, kTypeFlag, {&type, 1});
    put(block, kMagicAndVersion, kUstarMagic);
    put(block, kMajor, "0000000");
    put(block, kMinor, "0000000");
    put(block, kChecksum, checksum_text(checksum_of(block)));
    return block;
}

}  // namespace

Block encode_header(std::string_view name, std::uint64_t bytes) {
    return encode(kRegularFile, "0000644", name, bytes);
}

Block encode_directory_header(std::string_view name) { return encode(kDirectory, "0000755", name, 0); }

std::variant<Header, Refusal> decode_header(std::span<const std::byte, kBlockBytes> block) {
    // First the faults that have a name of their own, then any other.
    if (get(block, kMagicAndVersion) != kUstarMagic) {
        return Refusal{kMagicAndVersion.offset, "there is no ustar header"};
    }
    if (get(block, kChecksum) != checksum_text(checksum_of(block))) {
        return Refusal{kChecksum.offset, "the header's checksum is wrong"};
    }
    if (const char type = get(block, kTypeFlag).front(); type != kRegularFile) {
        return Refusal{kTypeFlag.offset, fmt::format("the type flag {} stands for {}, not for a regular file",
                                                     quoted({&type, 1}), meaning_of(type))};
    }
    if (get(block, kLinkName).front() != '\0') return Refusal{kLinkName.offset, "a link is named"};
    if (get(block, kPrefix).front() != '\0') return Refusal{kPrefix.offset, "the name has a prefix"};
    const std::string_view name_field = get(block, kName);
    const std::string_view name = name_field.substr(0, name_field.find('\0'));
    if (name.empty() || name.size() > kLongestName) {
        return Refusal{kName.offset, fmt::format("the name is not of 1 to {} bytes", kLongestName)};
    }
    const auto bytes = parse_size(get(block, kSize));
    if (!bytes) {
        return Refusal{kSize.offset,
                       fmt::format("the size {} is not 11 octal digits", quoted(get(block, kSize)))};
    }
    const Block expected = encode_header(name, *bytes);
    const auto [found, other] = std::mismatch(block.begin(), block.end(), expected.begin());
    if (found != block.end()) {
        return Refusal{static_cast<std::size_t>(found - block.begin()),
                       "a field of the header differs from what it is in every bundle"};
    }
    return Header{std::string(name), *bytes};
}

std::string quoted(std::string_view text) {
    constexpr std::size_t kLongest = 120;
    std::string result = "\"";
    for (const char c : text.substr(0, kLongest)) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\';
        result += plain ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
    }
    return result + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace attnsmith::cache::tar
