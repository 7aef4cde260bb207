// Compiled by test_tvm_ffi.py with the headers of apache-tvm-ffi: the declarations of tvm_ffi.hpp are theirs,
// but for the names of types.
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <type_traits>

#include "abi_functions.hpp"
#include "python/tvm_ffi_export/tvm_ffi.hpp"

namespace {

using attnsmith::tvm_ffi::Any;
using attnsmith::tvm_ffi::ByteArray;
using attnsmith::tvm_ffi::Object;

struct Types {
    // Pointers to functions of another signature are alike where ours is only compared with NULL.
    template <class Ours, class Theirs>
    static constexpr bool alike() {
        if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
            using Our = std::remove_pointer_t<Ours>;
            using Their = std::remove_pointer_t<Theirs>;
            if constexpr (std::is_function_v<Our> || std::is_function_v<Their>)
                return std::is_function_v<Our> && std::is_function_v<Their>;
            else
                return std::is_const_v<Our> == std::is_const_v<Their> && alike<Our, Their>();
        } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
            return sizeof(Ours) == sizeof(Theirs);
        } else {
            return std::is_same_v<std::remove_cv_t<Ours>, std::remove_cv_t<Theirs>>;
        }
    }
};

#define ATTNSMITH_COMPARE(name, result, arguments)                                                           \
    static_assert(Functions<Types, decltype(attnsmith::tvm_ffi::Functions::name), decltype(&::name)>::value, \
                  #name);
ATTNSMITH_TVM_FFI_FUNCTIONS(ATTNSMITH_COMPARE)
static_assert(Functions<Types, attnsmith::tvm_ffi::SafeCall, TVMFFISafeCallType>::value);

static_assert(sizeof(Any) == sizeof(TVMFFIAny) &&
              offsetof(Any, type_index) == offsetof(TVMFFIAny, type_index) &&
              offsetof(Any, small_length) == offsetof(TVMFFIAny, small_str_len) &&
              offsetof(Any, integer) == offsetof(TVMFFIAny, v_int64) &&
              offsetof(Any, bytes) == offsetof(TVMFFIAny, v_bytes));
static_assert(sizeof(Object) == sizeof(TVMFFIObject) &&
              offsetof(Object, type_index) == offsetof(TVMFFIObject, type_index) &&
              offsetof(Object, deleter) == offsetof(TVMFFIObject, deleter));
static_assert(sizeof(ByteArray) == sizeof(TVMFFIByteArray) &&
              offsetof(ByteArray, size) == offsetof(TVMFFIByteArray, size));
static_assert(sizeof(attnsmith_dl_tensor) == sizeof(DLTensor) &&
              offsetof(attnsmith_dl_tensor, byte_offset) == offsetof(DLTensor, byte_offset));

static_assert(attnsmith::tvm_ffi::kNone == kTVMFFINone && attnsmith::tvm_ffi::kInteger == kTVMFFIInt &&
              attnsmith::tvm_ffi::kBool == kTVMFFIBool && attnsmith::tvm_ffi::kNumber == kTVMFFIFloat &&
              attnsmith::tvm_ffi::kTensorPointer == kTVMFFIDLTensorPtr &&
              attnsmith::tvm_ffi::kRawText == kTVMFFIRawStr &&
              attnsmith::tvm_ffi::kSmallText == kTVMFFISmallStr && attnsmith::tvm_ffi::kText == kTVMFFIStr &&
              attnsmith::tvm_ffi::kTensor == kTVMFFITensor);
static_assert(int{ATTNSMITH_DL_CUDA} == int{kDLCUDA} && int{ATTNSMITH_DL_UINT} == int{kDLUInt});

}  // namespace
