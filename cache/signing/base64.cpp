#include "cache/signing/base64.hpp"

#include <cstdint>

namespace attnsmith::cache {
namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr int kBits = 6;
constexpr std::size_t kCharacters = 4;  // for each
constexpr std::size_t kBytes = 3;

}  // namespace

void append_base64(std::span<const std::byte> bytes, std::string& text) {
    for (std::size_t at = 0; at < bytes.size(); at += kBytes) {
        std::uint32_t group = 0;
        for (std::size_t i = 0; i < kBytes; ++i) {
            group = group << 8 | (at + i < bytes.size() ? std::to_integer<std::uint32_t>(bytes[at + i]) : 0);
        }
        for (std::size_t i = 0; i < kCharacters; ++i) {
            const std::uint32_t digit = group >> (kBits * (kCharacters - 1 - i)) & (kBase64Digits.size() - 1);
            text += at + i <= bytes.size() ? kBase64Digits[digit] : '=';
        }
    }
}

std::optional<std::size_t> decode_base64(std::string_view text, std::span<std::byte> bytes) {
    if (text.size() % kCharacters != 0) return std::nullopt;
    std::size_t padding = 0;
    while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
    const std::size_t size = text.size() / kCharacters * kBytes - padding;
    if (size > bytes.size()) return std::nullopt;
    for (std::size_t group_at = 0, at = 0; group_at < text.size(); group_at += kCharacters) {
        std::uint32_t group = 0;
        for (std::size_t i = group_at; i < group_at + kCharacters; ++i) {
            const bool is_padding = i >= text.size() - padding;
            const std::size_t digit = is_padding ? 0 : kBase64Digits.find(text[i]);
            if (digit == kBase64Digits.npos) return std::nullopt;
            group = group << kBits | static_cast<std::uint32_t>(digit);
        }
        for (std::size_t i = 0; i < kBytes; ++i) {
            const auto byte = static_cast<std::byte>(group >> (8 * (kBytes - 1 - i)));
            if (at < size) {
                bytes[at++] = byte;
            } else if (byte != std::byte{0}) {  // bits that the padding leaves unused
                return std::nullopt;
            }
        }
    }
    return size;
}

}  // namespace attnsmith::cache
