#include "cache/files/unique_token.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>

#include "cache/digest/digest.hpp"
#include "cache/digest/sha256.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::size_t kTokenDigits = 16;

}  // namespace

std::uint64_t unique_token() {
    static std::atomic<std::uint64_t> calls{0};
    const std::array<std::uint64_t, 3> ingredients = {
        static_cast<std::uint64_t>(::getpid()), calls.fetch_add(1, std::memory_order_relaxed),
        static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
    return digest_of(std::as_bytes(std::span(ingredients))).low();
}

std::string token_text(std::uint64_t token) { return fmt::format("{:016x}", token); }

bool remove_token(std::string_view& name, std::string_view before) {
    if (name.size() < kTokenDigits) return false;
    const std::string_view token = name.substr(name.size() - kTokenDigits);
    name.remove_suffix(kTokenDigits);
    if (!is_lower_hex(token, kTokenDigits) || !name.ends_with(before)) return false;
    name.remove_suffix(before.size());
    return true;
}

}  // namespace attnsmith::cache
