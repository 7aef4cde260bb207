// Checks and conversions that the functions of the C ABI share. All throw InvalidRequest naming the argument.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "attnsmith/attnsmith.h"

namespace attnsmith::c_api {

[[noreturn]] void refuse(std::string field, std::string value, std::string accepted);
[[noreturn]] void refuse_null(std::string_view name);

template <typename T>
T& required(T* pointer, std::string_view name) {
    if (pointer == nullptr) refuse_null(name);
    return *pointer;
}

std::string_view required_text(const char* text, std::string_view name);

// A count above `most` is garbage, and is refused before anything is read.
void check_list(const void* items, std::size_t count, std::string_view name, std::size_t most);

// The most folders, files or SMs that any sensible call has.
inline constexpr std::size_t kMostItems = 4096;
// For lists that programs write, such as a fleet's recorded specs: all that memory can hold.
template <typename T>
inline constexpr std::size_t kMostInMemory = std::size_t{PTRDIFF_MAX} / sizeof(T);

template <typename T>
std::span<const T> list(const T* items, std::size_t count, std::string_view name,
                        std::size_t most = kMostItems) {
    check_list(items, count, name, most);
    return {items, count};
}

// A copy that attnsmith_string_free frees.
char* copy_text(std::string_view text);

bool flag(std::string_view name, std::string_view field, std::int32_t value);
std::int32_t count(std::string_view name, std::string_view field, std::int32_t value);
void check_reserved(std::string_view name, std::int32_t value);

// Bytes of each struct in its first version; of an op's structs in its file of ops/. Fields are only ever
// added, at the end: a caller's struct has at least these. What it has more than this library knows is zero.
template <typename Struct>
inline constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_spec> = 136;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_sizes> = 32;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_runtime_options> = 80;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_prewarm_options> = 32;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_batch> = 88;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_workspace> = 24;
template <>
inline constexpr std::size_t kFirstSize<attnsmith_workspace_bounds> = 32;

static_assert(sizeof(attnsmith_spec) > kFirstSize<attnsmith_spec>);
static_assert(sizeof(attnsmith_sizes) == kFirstSize<attnsmith_sizes>);
static_assert(sizeof(attnsmith_runtime_options) > kFirstSize<attnsmith_runtime_options>);
static_assert(sizeof(attnsmith_prewarm_options) > kFirstSize<attnsmith_prewarm_options>);
static_assert(sizeof(attnsmith_batch) > kFirstSize<attnsmith_batch>);
static_assert(sizeof(attnsmith_workspace) == kFirstSize<attnsmith_workspace>);
static_assert(sizeof(attnsmith_workspace_bounds) == kFirstSize<attnsmith_workspace_bounds>);

// The largest struct that a later header may have: a size above it is garbage, and nothing is read.
inline constexpr std::size_t kMostStructBytes = 4096;

void check_size(std::string_view name, std::size_t size, std::size_t least, std::size_t known);
// Refuses a struct of `size` bytes that says anything in those from `known` on.
void check_surplus(const void* given, std::string_view name, std::size_t size, std::size_t known);

// The size that the caller's struct has, which may be more than this library's.
template <typename Struct>
std::size_t checked_size(const Struct* given, std::string_view name) {
    static_assert(kFirstSize<Struct> > 0, "give kFirstSize the bytes of the struct's first version");
    const std::size_t size = required(given, name).size;
    check_size(name, size, kFirstSize<Struct>, sizeof(Struct));
    return size;
}

// The caller's struct; fields that its header did not have yet are zero.
template <typename Struct>
Struct read_struct(const Struct* given, std::string_view name) {
    const std::size_t size = checked_size(given, name);
    check_surplus(given, name, size, sizeof(Struct));
    Struct known{};
    std::memcpy(&known, given, std::min(size, sizeof(Struct)));
    return known;
}

// Writes the fields that the caller's header has; those that only it has become zero.
template <typename Struct>
void write_struct(Struct& to, std::size_t size, Struct from) {
    from.size = size;
    auto* const bytes = reinterpret_cast<unsigned char*>(&to);
    const std::size_t known = std::min(size, sizeof(Struct));
    std::memcpy(bytes, &from, known);
    std::memset(bytes + known, 0, size - known);
}

}  // namespace attnsmith::c_api
