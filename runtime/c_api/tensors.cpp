#include "c_api/tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "c_api/arguments.hpp"

namespace attnsmith::c_api {
namespace {

// Where empty tensors lie whose data is null, as it is in every framework: in C++ null is an absent tensor.
// A constant that is no memory, so that a use of it would not pass unseen.
constexpr std::uintptr_t kNowhere = 256;

std::string part(std::string_view name, std::string_view what) { return fmt::format("{}.{}", name, what); }

void check_device(const attnsmith_dl_device& given, std::string_view name, int device) {
    const bool managed = given.device_type == ATTNSMITH_DL_CUDA_MANAGED;  // reached from every device
    const bool here = given.device_type == ATTNSMITH_DL_CUDA && given.device_id == device;
    if (managed || here) return;
    refuse(part(name, "device"), fmt::format("type {}, id {}", given.device_type, given.device_id),
           fmt::format("type {} (CUDA), id {} (the kernel's device), or type {} (CUDA managed)",
                       int{ATTNSMITH_DL_CUDA}, device, int{ATTNSMITH_DL_CUDA_MANAGED}));
}

DType read_dtype(const attnsmith_dl_data_type& given, std::string_view name) {
    struct Known {
        int code, bits;
        DType dtype;
    };
    constexpr Known kKnown[] = {{ATTNSMITH_DL_FLOAT, 16, DType::fp16}, {ATTNSMITH_DL_BFLOAT, 16, DType::bf16},
                                {ATTNSMITH_DL_FLOAT, 32, DType::fp32}, {ATTNSMITH_DL_INT, 32, DType::int32},
                                {ATTNSMITH_DL_INT, 64, DType::int64},  {ATTNSMITH_DL_E4M3FN, 8, DType::e4m3},
                                {ATTNSMITH_DL_E5M2, 8, DType::e5m2},   {ATTNSMITH_DL_UINT, 8, DType::uint8}};
    for (const Known& known : kKnown) {
        if (given.code == known.code && given.bits == known.bits && given.lanes == 1) return known.dtype;
    }
    refuse(part(name, "dtype"),
           fmt::format("code {}, {} bits, {} lanes", given.code, given.bits, given.lanes),
           "fp16 (code 2, 16 bits, 1 lane), bf16 (4, 16), fp32 (2, 32), int32 (0, 32), int64 (0, 64), e4m3 "
           "(10, 8), "
           "e5m2 (12, 8) or uint8 (1, 8)");
}

void read_shape(Tensor& tensor, const attnsmith_dl_tensor& given, std::string_view name) {
    if (given.ndim < 0 || given.ndim > Tensor::kMaxRank) {
        refuse(part(name, "ndim"), std::to_string(given.ndim), fmt::format("0 to {}", Tensor::kMaxRank));
    }
    tensor.rank = given.ndim;
    if (given.ndim > 0 && given.shape == nullptr) {
        refuse(part(name, "shape"), "NULL", fmt::format("{} extents", given.ndim));
    }
    for (int axis = 0; axis < given.ndim; ++axis) {
        const std::int64_t extent = given.shape[axis];
        if (extent < 0)
            refuse(fmt::format("{}.shape[{}]", name, axis), std::to_string(extent), "an extent from 0");
        tensor.shape[static_cast<std::size_t>(axis)] = extent;
    }
}

void read_strides(Tensor& tensor, const attnsmith_dl_tensor& given, std::string_view name) {
    std::int64_t compact = 1;
    for (int axis = given.ndim - 1; axis >= 0; --axis) {
        const auto at = static_cast<std::size_t>(axis);
        tensor.strides[at] = given.strides != nullptr ? given.strides[axis] : compact;
        const std::int64_t extent = std::max<std::int64_t>(tensor.shape[at], 1);
        if (given.strides == nullptr && __builtin_mul_overflow(compact, extent, &compact)) {
            refuse(fmt::format("{}.shape[{}]", name, axis), std::to_string(extent),
                   "a shape whose compact strides fit 64 bits");
        }
    }
}

void* read_data(const Tensor& tensor, const attnsmith_dl_tensor& given, std::string_view name) {
    const auto end = tensor.shape.begin() + tensor.rank;
    const bool empty = std::find(tensor.shape.begin(), end, 0) != end;
    if (given.data == nullptr) {
        if (!empty) refuse(part(name, "data"), "NULL", "device memory");
        return reinterpret_cast<void*>(kNowhere);
    }
    std::uintptr_t address = 0;
    if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(given.data), given.byte_offset, &address)) {
        refuse(part(name, "byte_offset"), std::to_string(given.byte_offset), "an offset within the memory");
    }
    return reinterpret_cast<void*>(address);
}

}  // namespace

Tensor read_tensor(const attnsmith_dl_tensor* given, std::string_view name, int device) {
    Tensor tensor;
    if (given == nullptr) return tensor;
    check_device(given->device, name, device);
    tensor.dtype = read_dtype(given->dtype, name);
    read_shape(tensor, *given, name);
    read_strides(tensor, *given, name);
    tensor.data = read_data(tensor, *given, name);
    return tensor;
}

Batch read_batch(const attnsmith_batch* given, int device) {
    if (given == nullptr) return {};
    const attnsmith_batch c = read_struct(given, "batch");
    return {.q_indptr = read_tensor(c.q_indptr, "batch.q_indptr", device),
            .q_lens = read_tensor(c.q_lens, "batch.q_lens", device),
            .kv_indptr = read_tensor(c.kv_indptr, "batch.kv_indptr", device),
            .kv_lens = read_tensor(c.kv_lens, "batch.kv_lens", device),
            .page_table = read_tensor(c.page_table, "batch.page_table", device),
            .table_rows = read_tensor(c.table_rows, "batch.table_rows", device),
            .page_indptr = read_tensor(c.page_indptr, "batch.page_indptr", device),
            .page_indices = read_tensor(c.page_indices, "batch.page_indices", device),
            .last_page_len = read_tensor(c.last_page_len, "batch.last_page_len", device),
            .max_q_len = c.max_q_len,
            .max_kv_len = c.max_kv_len};
}

Workspace read_workspace(const attnsmith_workspace* given) {
    const attnsmith_workspace c = read_struct(given, "workspace");
    required(static_cast<char*>(c.data), "workspace.data");
    return {.data = c.data, .bytes = c.bytes};
}

}  // namespace attnsmith::c_api
