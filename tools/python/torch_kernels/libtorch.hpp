// The functions of libtorch's stable C ABI that the kernels use, by their addresses: nothing here is compiled
// or linked against torch, so one file serves every torch from 2.10 on. A test compares the declarations with
// torch's headers (tests/python/torch_abi_test.cpp).
#pragma once

#include <cstdint>

namespace attnsmith::torch_kernels {

struct TensorObject;
using TensorHandle = TensorObject*;
struct LibraryObject;
using LibraryHandle = LibraryObject*;
struct StringObject;
using StringHandle = StringObject*;
struct DeviceGuardObject;
using DeviceGuardHandle = DeviceGuardObject*;

// An argument or a result of an operator: a number in its first bytes; a TensorHandle, which is owned with
// the value; a StringHandle, likewise; or, where the schema says optional, 0 or the address of another value,
// made by new.
using Value = std::uint64_t;
using BoxedKernel = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);
using Status = std::int32_t;  // 0: done

// clang-format off
// f(name, result, arguments). Those of the last group are in libtorch_cuda.so, the others in libtorch_cpu.so.
#define ATTNSMITH_TORCH_FUNCTIONS(f) \
    f(aoti_torch_get_data_ptr, Status, (TensorHandle, void**)) \
    f(aoti_torch_get_dim, Status, (TensorHandle, std::int64_t*)) \
    f(aoti_torch_get_sizes, Status, (TensorHandle, std::int64_t**)) \
    f(aoti_torch_get_strides, Status, (TensorHandle, std::int64_t**)) \
    f(aoti_torch_get_dtype, Status, (TensorHandle, std::int32_t*)) \
    f(aoti_torch_get_layout, Status, (TensorHandle, std::int32_t*)) \
    f(aoti_torch_get_device_type, Status, (TensorHandle, std::int32_t*)) \
    f(aoti_torch_get_device_index, Status, (TensorHandle, std::int32_t*)) \
    f(aoti_torch_empty_strided, Status, (std::int64_t, const std::int64_t*, const std::int64_t*, \
          std::int32_t, std::int32_t, std::int32_t, TensorHandle*)) \
    f(aoti_torch_new_uninitialized_tensor, Status, (TensorHandle*)) \
    f(aoti_torch_delete_tensor_object, Status, (TensorHandle)) \
    f(aoti_torch_create_device_guard, Status, (std::int32_t, DeviceGuardHandle*)) \
    f(aoti_torch_delete_device_guard, Status, (DeviceGuardHandle)) \
    f(aoti_torch_dtype_float32, std::int32_t, ()) \
    f(aoti_torch_dtype_int64, std::int32_t, ()) \
    f(aoti_torch_dtype_element_size, std::size_t, (std::int32_t)) \
    f(aoti_torch_copy_, Status, (TensorHandle, TensorHandle, std::int32_t)) \
    f(aoti_torch_get_storage_offset, Status, (TensorHandle, std::int64_t*)) \
    f(aoti_torch_grad_mode_is_enabled, bool, ()) \
    f(torch_string_length, Status, (StringHandle, std::size_t*)) \
    f(torch_string_c_str, Status, (StringHandle, const char**)) \
    f(torch_delete_string, Status, (StringHandle)) \
    f(aoti_torch_dtype_uint64, std::int32_t, ()) \
    f(aoti_torch_layout_strided, std::int32_t, ()) \
    f(aoti_torch_device_type_cuda, std::int32_t, ()) \
    f(aoti_torch_library_init_impl, Status, (const char*, const char*, const char*, std::uint32_t, \
          LibraryHandle*)) \
    f(aoti_torch_delete_library_object, Status, (LibraryHandle)) \
    f(torch_library_impl, Status, (LibraryHandle, const char*, BoxedKernel, std::uint64_t)) \
    f(torch_call_dispatcher, Status, (const char*, const char*, Value*, std::uint64_t))
#define ATTNSMITH_TORCH_CUDA_FUNCTIONS(f) \
    f(aoti_torch_get_current_cuda_stream, Status, (std::int32_t, void**))
// torch's own kernels there, past the dispatcher; NULL where this torch has them no more.
#define ATTNSMITH_TORCH_KERNELS(f) \
    f(aoti_torch_cuda__scaled_dot_product_cudnn_attention, Status, (TensorHandle, TensorHandle, \
          TensorHandle, TensorHandle*, std::int32_t, double, std::int32_t, std::int32_t, double*, \
          TensorHandle*, TensorHandle*, TensorHandle*, TensorHandle*, std::int64_t*, std::int64_t*, \
          TensorHandle*, TensorHandle*, TensorHandle*)) \
    f(aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward, Status, (TensorHandle, TensorHandle, \
          TensorHandle, TensorHandle, TensorHandle, TensorHandle, TensorHandle, TensorHandle, \
          TensorHandle, TensorHandle, TensorHandle, std::int64_t, std::int64_t, double, std::int32_t, \
          double*, TensorHandle*, TensorHandle*, TensorHandle*))
// clang-format on

// The version that these declarations are of: 2.10.
inline constexpr std::uint64_t kAbiVersion = std::uint64_t{2} << 56 | std::uint64_t{10} << 48;

struct Libtorch {
#define ATTNSMITH_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
    ATTNSMITH_TORCH_FUNCTIONS(ATTNSMITH_MEMBER)
    ATTNSMITH_TORCH_CUDA_FUNCTIONS(ATTNSMITH_MEMBER)
    ATTNSMITH_TORCH_KERNELS(ATTNSMITH_MEMBER)
#undef ATTNSMITH_MEMBER
};

}  // namespace attnsmith::torch_kernels
