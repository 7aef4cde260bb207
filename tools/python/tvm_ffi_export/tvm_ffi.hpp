// The part of the TVM FFI ABI that the export uses: values, and the functions of libtvm_ffi by their
// addresses. Nothing here is compiled or linked against apache-tvm-ffi, so one file serves every release of
// this ABI. A test compares the declarations with the package's headers (tests/python/tvm_ffi_abi_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attnsmith/attnsmith.h"

namespace attnsmith::tvm_ffi {

// What Any::type_index says of a value, as far as it is read or written here.
enum TypeIndex : std::int32_t {
    kNone = 0,
    kInteger = 1,
    kBool = 2,
    kNumber = 3,
    kTensorPointer = 7,  // DLTensor*
    kRawText = 8,        // const char*
    kSmallText = 11,     // in the value itself
    kText = 65,          // an Object, then a ByteArray
    kTensor = 70         // an Object, then a DLTensor
};

// The head of every object.
struct Object {
    std::uint64_t references;
    std::int32_t type_index;
    std::uint32_t padding;
    void (*deleter)(void* self, int flags);
};

// An argument or a result.
struct Any {
    std::int32_t type_index;
    std::uint32_t small_length;  // of a small text; else 0
    union {
        std::int64_t integer;
        double number;
        void* pointer;
        const char* text;
        Object* object;
        char bytes[8];
    };
};

struct ByteArray {
    const char* data;
    std::size_t size;
};

// A function: 0, or -1 after it has set the error that its caller gets.
using SafeCall = int (*)(void* self, const Any* arguments, std::int32_t count, Any* result);
using TensorAllocator = void (*)();  // only compared with NULL

// f(name, result, arguments).
#define ATTNSMITH_TVM_FFI_FUNCTIONS(f)                                                                       \
    f(TVMFFIErrorSetRaisedFromCStr, void, (const char* kind, const char* message)) f(                        \
        TVMFFIEnvGetStream, void*, (std::int32_t device_type, std::int32_t device))                          \
        f(TVMFFIEnvGetDLPackManagedTensorAllocator, ::attnsmith::tvm_ffi::TensorAllocator, ()) f(            \
            TVMFFIEnvTensorAlloc, int, (attnsmith_dl_tensor * prototype, void** tensor))                     \
            f(TVMFFIObjectDecRef, int, (void* object)) f(                                                    \
                TVMFFIFunctionCreate, int,                                                                   \
                (void* self, ::attnsmith::tvm_ffi::SafeCall call, void (*deleter)(void* self), void** made)) \
                f(TVMFFIFunctionSetGlobal, int,                                                              \
                  (const ::attnsmith::tvm_ffi::ByteArray* name, void* function, int allow_override))         \
                    f(TVMFFIStringFromByteArray, int,                                                        \
                      (const ::attnsmith::tvm_ffi::ByteArray* text, ::attnsmith::tvm_ffi::Any* made))

struct Functions {
#define ATTNSMITH_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
    ATTNSMITH_TVM_FFI_FUNCTIONS(ATTNSMITH_MEMBER)
#undef ATTNSMITH_MEMBER
};

// Those of the libtvm_ffi that this process has; NULL where it has none.
const Functions* functions();

}  // namespace attnsmith::tvm_ffi
