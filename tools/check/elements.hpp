// Elements of a tensor's bytes as they came from the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace attnsmith::check {

template <typename T>
T load_at(const std::vector<std::byte>& bytes, std::int64_t element) {
    T value;
    std::memcpy(&value, bytes.data() + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
}

template <typename T>
void store_at(std::vector<std::byte>& bytes, std::int64_t element, T value) {
    std::memcpy(bytes.data() + element * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace attnsmith::check
