// A call of an operator of torch's: its arguments on the stack, by the description that the package gives of
// the operator's schema.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "interface.h"
#include "libtorch.hpp"
#include "python/native/recipes.hpp"

namespace attnsmith::torch_kernels {

struct Operator {
    explicit Operator(const attnsmith_torch_operator& from)
        : name(full_name(from)),
          other(from.other),
          results(from.results),
          arguments(from.arguments, from.arguments + from.argument_count),
          refuses_gradients(from.refuses_gradients != 0),
          own(from.own) {}

    static std::string full_name(const attnsmith_torch_operator& of) {
        return std::string(of.space) + "::" + of.name;
    }

    std::string name, other, results;
    std::vector<attnsmith_torch_argument> arguments;
    bool refuses_gradients;
    std::int32_t own;
    std::atomic<std::uint64_t> served = 0;
};

// The address of the value of an optional argument, or NULL.
inline Value* optional(Value value) { return reinterpret_cast<Value*>(value); }
inline TensorHandle as_tensor(Value value) { return reinterpret_cast<TensorHandle>(value); }

class Call {
  public:
    static constexpr int kMostTensors = python::kFields;

    Call(const Libtorch& torch, const Operator& of, std::size_t number, Value* stack)
        : torch_(torch), operator_(of), stack_(stack) {
        layout.add(number);
        for (std::size_t i = 0; i < of.arguments.size(); ++i) add(of.arguments[i], stack[i]);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Reads the tensors. False where they are none that a recipe can be for.
    bool read(std::int32_t strided) {
        std::uintptr_t bits = 0;
        for (int i = 0; i < count_; ++i) {
            Tensor& one = tensors_[static_cast<std::size_t>(i)];
            std::int64_t rank = 0, *shape = nullptr, *strides = nullptr;
            std::int32_t dtype = 0, layout_of = 0, type = 0, index = 0;
            if (torch_.aoti_torch_get_layout(one.handle, &layout_of) != 0 || layout_of != strided ||
                torch_.aoti_torch_get_dim(one.handle, &rank) != 0 || rank > python::kMostAxes ||
                torch_.aoti_torch_get_sizes(one.handle, &shape) != 0 ||
                torch_.aoti_torch_get_strides(one.handle, &strides) != 0 ||
                torch_.aoti_torch_get_dtype(one.handle, &dtype) != 0 ||
                torch_.aoti_torch_get_device_type(one.handle, &type) != 0 ||
                torch_.aoti_torch_get_device_index(one.handle, &index) != 0 ||
                torch_.aoti_torch_get_data_ptr(one.handle, &one.data) != 0)
                return false;
            // NULL would be the address that was bound before.
            if (one.data == nullptr && std::find(shape, shape + rank, 0) == shape + rank) return false;
            if (i == 0) {
                device_type = type;
                device = index;
                layout.add(std::uint64_t{static_cast<std::uint32_t>(index)});
            } else if (type != device_type || index != device) {
                return false;
            }
            if (one.field == python::field_of(&attnsmith_tensors::q)) dtype_of_q = dtype;
            if (python::is_aligned(one.field)) bits |= reinterpret_cast<std::uintptr_t>(one.data);
            layout.add(static_cast<std::uint64_t>(one.field) << 32 | static_cast<std::uint64_t>(dtype) << 8 |
                       static_cast<std::uint64_t>(rank));
            layout.add(rank, shape);
            layout.add(rank, strides);
        }
        layout.add(bits & 15);
        return count_ > 0 && layout.fits() && !writes_to_an_input();
    }

    // Has the arguments of a launch point to the tensors. `values_offset`: bytes from k to v that lies there,
    // or negative.
    void point(python::Recipe::Arguments& arguments, std::int64_t values_offset) const {
        for (int i = 0; i < count_; ++i) {
            const Tensor& one = tensors_[static_cast<std::size_t>(i)];
            arguments.point(one.field, one.data);
            if (values_offset >= 0 && one.field == python::field_of(&attnsmith_tensors::k))
                arguments.point(python::field_of(&attnsmith_tensors::v),
                                static_cast<char*>(one.data) + values_offset);
        }
    }

    // The extent of the axis of tokens of [batch, heads, tokens, head_dim].
    std::int64_t length(int field) const {
        for (int i = 0; i < count_; ++i) {
            const Tensor& one = tensors_[static_cast<std::size_t>(i)];
            std::int64_t rank = 0, *shape = nullptr;
            if (one.field == field && torch_.aoti_torch_get_dim(one.handle, &rank) == 0 && rank > 2 &&
                torch_.aoti_torch_get_sizes(one.handle, &shape) == 0)
                return shape[2];
        }
        return 0;
    }

    // Gives back what the stack holds: it is the kernel's.
    void release() const {
        for (std::size_t i = 0; i < operator_.arguments.size(); ++i) {
            Value value = stack_[i];
            const attnsmith_torch_argument& argument = operator_.arguments[i];
            if (argument.is_optional != 0) {
                Value* const inside = optional(value);
                if (inside == nullptr) continue;
                value = *inside;
                delete inside;
            }
            if (argument.kind == ATTNSMITH_TORCH_STRING)
                torch_.torch_delete_string(reinterpret_cast<StringHandle>(value));
            else if (argument.kind != ATTNSMITH_TORCH_NUMBER)
                torch_.aoti_torch_delete_tensor_object(as_tensor(value));
        }
    }

    // Has the stack hold the addresses of words, or 0 for none, in the place of words. torch's dispatcher
    // would take a word and not give its memory back.
    class Words {
      public:
        Words(const Call& call, Value* stack) : torch_(call.torch_) {
            const auto& arguments = call.operator_.arguments;
            for (std::size_t i = 0; i < arguments.size(); ++i) {
                if (arguments[i].kind != ATTNSMITH_TORCH_STRING) continue;
                Value value = std::exchange(stack[i], 0);
                if (arguments[i].is_optional != 0) {
                    const std::unique_ptr<Value> inside(optional(value));
                    if (inside == nullptr) continue;
                    value = *inside;
                }
                const auto handle = reinterpret_cast<StringHandle>(value);
                const char* text = nullptr;
                std::size_t length = 0;
                if (torch_.torch_string_c_str(handle, &text) == 0 &&
                    torch_.torch_string_length(handle, &length) == 0)
                    texts_.push_back(std::make_unique<std::string>(text, length));
                else
                    texts_.push_back(std::make_unique<std::string>());
                torch_.torch_delete_string(handle);
                // A word with a NUL is none of attnsmith's, and what is before it might be.
                std::replace(texts_.back()->begin(), texts_.back()->end(), '\0', '?');
                stack[i] = reinterpret_cast<Value>(texts_.back()->c_str());
            }
        }
        Words(const Words&) = delete;
        Words& operator=(const Words&) = delete;

      private:
        const Libtorch& torch_;
        std::vector<std::unique_ptr<std::string>> texts_;
    };

    python::Layout layout;
    std::int32_t device_type = 0, device = 0, dtype_of_q = 0;
    bool has_mask = false;

  private:
    struct Tensor {
        TensorHandle handle;
        int field;
        void* data;
    };

    // Whether o is given, and has memory of another tensor: Python computes it elsewhere.
    bool writes_to_an_input() const {
        const auto end = tensors_.begin() + count_;
        const auto out = std::find_if(tensors_.begin(), end, [](const Tensor& one) {
            return one.field == python::field_of(&attnsmith_tensors::o);
        });
        return out != end && std::any_of(tensors_.begin(), end, [&](const Tensor& one) {
                   return &one != &*out && memory_of(one) == memory_of(*out);
               });
    }
    const char* memory_of(const Tensor& one) const {
        std::int64_t offset = 0;
        std::int32_t dtype = 0;
        torch_.aoti_torch_get_storage_offset(one.handle, &offset);
        torch_.aoti_torch_get_dtype(one.handle, &dtype);
        return static_cast<const char*>(one.data) -
               offset * static_cast<std::int64_t>(torch_.aoti_torch_dtype_element_size(dtype));
    }

    void add(const attnsmith_torch_argument& argument, Value value) {
        if (argument.is_optional != 0) {
            const Value* const inside = optional(value);
            layout.add(std::uint64_t{inside != nullptr});
            if (inside == nullptr) return;
            value = *inside;
        }
        switch (argument.kind) {
            case ATTNSMITH_TORCH_TENSOR:
                tensors_[static_cast<std::size_t>(count_++)] = {as_tensor(value), argument.field, nullptr};
                break;
            case ATTNSMITH_TORCH_MASK:
                has_mask = true;
                break;
            case ATTNSMITH_TORCH_OTHER:
                break;
            case ATTNSMITH_TORCH_STRING:
                add_word(reinterpret_cast<StringHandle>(value));
                break;
            default:
                layout.add(value);
        }
    }
    // The words of attnsmith's options; a longer one is no option.
    void add_word(StringHandle handle) {
        std::uint64_t letters[2] = {};
        std::size_t length = 0;
        const char* text = nullptr;
        if (torch_.torch_string_length(handle, &length) != 0 || torch_.torch_string_c_str(handle, &text) != 0)
            length = sizeof letters + 1;
        layout.add(std::uint64_t{length});
        if (length > sizeof letters) return layout.outgrow();
        std::memcpy(letters, text, length);
        for (const std::uint64_t part : letters) layout.add(part);
    }

    const Libtorch& torch_;
    const Operator& operator_;
    Value* stack_;
    std::array<Tensor, kMostTensors> tensors_;
    int count_ = 0;
};

}  // namespace attnsmith::torch_kernels
