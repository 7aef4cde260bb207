// Owners of the C ABI's objects, and how its answers are checked.
#pragma once

#include <attnsmith/attnsmith.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace attnsmith::test {

template <auto free>
struct Free {
    template <typename T>
    void operator()(T* object) const {
        free(object);
    }
};

using RuntimeHandle = std::unique_ptr<attnsmith_runtime, Free<attnsmith_runtime_free>>;
using KernelHandle = std::unique_ptr<attnsmith_kernel, Free<attnsmith_kernel_free>>;
using SetHandle = std::unique_ptr<attnsmith_kernel_set, Free<attnsmith_kernel_set_free>>;
using PendingHandle = std::unique_ptr<attnsmith_pending, Free<attnsmith_pending_free>>;
using CallHandle = std::unique_ptr<attnsmith_call, Free<attnsmith_call_free>>;
using BufferHandle = std::unique_ptr<attnsmith_buffer, Free<attnsmith_buffer_free>>;
using ErrorHandle = std::unique_ptr<attnsmith_error, Free<attnsmith_error_free>>;
using TextHandle = std::unique_ptr<char, Free<attnsmith_string_free>>;

// A DLPack tensor with the shape and strides that it points to. Device 0's bf16 until told otherwise.
class DlTensor {
  public:
    DlTensor() = default;
    DlTensor(void* data, std::vector<std::int64_t> shape) : data_(data), shape_(std::move(shape)) {}

    DlTensor& dtype(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes = 1) {
        dtype_ = {code, bits, lanes};
        return *this;
    }
    DlTensor& device(std::int32_t type, std::int32_t id) {
        device_ = {type, id};
        return *this;
    }
    DlTensor& strides(std::vector<std::int64_t> strides) {
        strides_ = std::move(strides);
        return *this;
    }
    DlTensor& byte_offset(std::uint64_t bytes) {
        byte_offset_ = bytes;
        return *this;
    }

    // Valid until the next change of this object.
    const attnsmith_dl_tensor* get() {
        view_ = {data_,       device_,       static_cast<std::int32_t>(shape_.size()),
                 dtype_,      shape_.data(), strides_.empty() ? nullptr : strides_.data(),
                 byte_offset_};
        return &view_;
    }

  private:
    void* data_ = nullptr;
    std::vector<std::int64_t> shape_, strides_;
    attnsmith_dl_device device_{ATTNSMITH_DL_CUDA, 0};
    attnsmith_dl_data_type dtype_{ATTNSMITH_DL_BFLOAT, 16, 1};
    std::uint64_t byte_offset_ = 0;
    attnsmith_dl_tensor view_{};
};

}  // namespace attnsmith::test
