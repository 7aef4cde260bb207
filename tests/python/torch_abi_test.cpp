// Compiled by test_torch_kernels.py with torch's headers: the declarations of libtorch.hpp are those of
// torch, but for the names of types that are only pointed to.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#include <torch/csrc/stable/c/shim.h>

#include <type_traits>

#include "abi_functions.hpp"
#include "python/torch_kernels/libtorch.hpp"

namespace {

struct Types {
    template <class Ours, class Torchs>
    static constexpr bool alike() {
        if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Torchs>)
            return alike<std::remove_pointer_t<Ours>, std::remove_pointer_t<Torchs>>();
        else if constexpr (std::is_class_v<Ours> && std::is_class_v<Torchs>)
            return true;
        else
            return std::is_same_v<std::remove_cv_t<Ours>, std::remove_cv_t<Torchs>>;
    }
};

#define ATTNSMITH_COMPARE(name, result, arguments)                                                      \
    static_assert(                                                                                      \
        Functions<Types, decltype(attnsmith::torch_kernels::Libtorch::name), decltype(&::name)>::value, \
        #name);
ATTNSMITH_TORCH_FUNCTIONS(ATTNSMITH_COMPARE)
ATTNSMITH_TORCH_CUDA_FUNCTIONS(ATTNSMITH_COMPARE)
ATTNSMITH_TORCH_KERNELS(ATTNSMITH_COMPARE)

static_assert(std::is_same_v<attnsmith::torch_kernels::Value, StableIValue>);
static_assert(attnsmith::torch_kernels::kAbiVersion == TORCH_VERSION_2_10_0);

}  // namespace
