// What tensors are checked for, whatever they are bound to: each check throws InvalidRequest naming the
// tensor and its part, what it has and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "attnsmith/spec.hpp"
#include "attnsmith/tensor.hpp"

namespace attnsmith::problem {

// A tensor with the name that errors give it. Texts are made for what is refused only: a bind may come before
// each launch.
struct Named {
    std::string_view name;
    const Tensor& tensor;
    int index = -1;             // in a list of tensors; -1: not of a list
    std::string_view within{};  // what it is a part of, with the dot: "addresses."

    bool present() const { return static_cast<bool>(tensor); }
    std::int64_t extent(int axis) const { return tensor.shape[static_cast<std::size_t>(axis)]; }
    std::int64_t stride(int axis) const { return tensor.strides[static_cast<std::size_t>(axis)]; }

    std::string text() const;                               // "q", "o_states[3]", "addresses.k"
    std::string part(std::string_view what) const;          // "q.dtype"
    std::string at(std::string_view what, int axis) const;  // "q.strides[2]"
};

// Extents that a tensor has to have; kAny where only the tensor says.
inline constexpr std::int64_t kAny = -1;
struct Expected {
    std::int64_t extent;
    std::string_view meaning;
};

[[noreturn]] void refuse(std::string field, std::string value, std::string accepted);

void check_present(const Named& named, std::string_view why);
void refuse_extra(const Named& named, std::string_view belongs_to);
void check_dtype(const Named& named, DType expected);
// Where a float of 8 bits is expected uint8 will do: frameworks without such floats keep them as bytes.
void check_stored_dtype(const Named& named, DType expected);
void check_shape(const Named& named, std::initializer_list<Expected> axes);
// From the first byte of a checked tensor to its end; 0 of one without elements.
std::int64_t bytes_of(const Tensor& tensor);
// What a base that so many bytes begin at has to be, where `address` is not that: nothing where it is.
std::optional<std::string> base_refusal(const void* address, std::int64_t bytes, std::int64_t alignment);
// Bytes that the base of q, k, v or o is a multiple of: the alignment class of the spec.
std::int64_t operand_alignment(const AttentionSpec& spec, DType dtype);
// Memory for every element, at addresses that exist, from a base of this alignment in bytes.
void check_memory(const Named& named, std::int64_t alignment);
void check_inner_stride(const Named& named);
// q, k, v and o: base and rows in the alignment class of the spec, the last axis contiguous.
void check_operand(const Named& named, const AttentionSpec& spec);
void check_vector(const Named& named, DType dtype, Expected extent);
// k_scale or v_scale of a spec whose kv_scale is tensor or head.
void check_kv_scale(const Named& named, const AttentionSpec& spec);
// The same of kv_scale token_head and block128: the axes of `cache`, which is k or v and was checked, but the
// last, and of block128 one of the blocks of its columns. With any strides.
void check_token_scales(const Named& named, const Named& cache, const AttentionSpec& spec);
// Columns of k. A spec with head_dim_ckv has those of the position behind the latent's, unless `position` is
// a tensor of their own.
Expected key_columns(const AttentionSpec& spec, const Named& position);
// The same of what is stored: with scales of blocks those of the position are never behind the latent's.
Expected stored_columns(const AttentionSpec& spec, const Named& position);
// The first `bytes` of a workspace as a tensor that no other may overlap.
Tensor workspace_tensor(void* data, std::int64_t bytes);
// No two elements of an output share memory.
void check_output_elements(const Named& named);
void refuse_overlap(const Named& output, const Named& other);
// The same elements at the same places, so that a kernel that reads an element before it writes it there may
// have one as input and output. Strides of axes that do not step say nothing.
bool is_same_view(const Named& a, const Named& b);

}  // namespace attnsmith::problem
