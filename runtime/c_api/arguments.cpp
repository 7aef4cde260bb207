#include "c_api/arguments.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "attnsmith/error.hpp"

namespace attnsmith::c_api {

void refuse(std::string field, std::string value, std::string accepted) {
    throw InvalidRequest(std::move(field), std::move(value), std::move(accepted));
}

void refuse_null(std::string_view name) { refuse(std::string(name), "NULL", "a pointer that is not NULL"); }

std::string_view required_text(const char* text, std::string_view name) { return &required(text, name); }

void check_list(const void* items, std::size_t count, std::string_view name, std::size_t most) {
    if (count > most) {
        refuse(std::string(name), fmt::format("a list of {}", count), fmt::format("at most {}", most));
    }
    if (count > 0 && items == nullptr) {
        refuse(std::string(name), "NULL", fmt::format("a pointer to {}, as its count says", count));
    }
}

char* copy_text(std::string_view text) {
    auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, text.data(), text.size());
    copy[text.size()] = '\0';
    return copy;
}

bool flag(std::string_view name, std::string_view field, std::int32_t value) {
    if (value == 0 || value == 1) return value == 1;
    refuse(fmt::format("{}.{}", name, field), std::to_string(value), "0 or 1");
}

std::int32_t count(std::string_view name, std::string_view field, std::int32_t value) {
    if (value >= 0) return value;
    refuse(fmt::format("{}.{}", name, field), std::to_string(value), "a number from 1, or 0 for the default");
}

void check_reserved(std::string_view name, std::int32_t value) {
    if (value != 0) refuse(fmt::format("{}.reserved", name), std::to_string(value), "0");
}

void check_size(std::string_view name, std::size_t size, std::size_t least, std::size_t known) {
    // Versions of a struct end after whole members of eight bytes: another size would cut one in two.
    constexpr std::size_t kMember = 8;
    if (size >= least && size <= kMostStructBytes && size % kMember == 0) return;
    refuse(fmt::format("{}.size", name), std::to_string(size),
           fmt::format(
               "the struct's sizeof: {} in this library's header, in others a multiple of {} from {} to {}",
               known, kMember, least, kMostStructBytes));
}

void check_surplus(const void* given, std::string_view name, std::size_t size, std::size_t known) {
    const auto* const bytes = static_cast<const unsigned char*>(given);
    for (std::size_t at = known; at < size; ++at) {
        if (bytes[at] == 0) continue;
        refuse(
            fmt::format("{}.size", name), fmt::format("{}, with a field set at byte {}", size, at),
            fmt::format("fields in the first {} bytes alone: this library is older than the header that the "
                        "caller was compiled with",
                        known));
    }
}

}  // namespace attnsmith::c_api
