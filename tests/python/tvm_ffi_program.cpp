// Built and run by test_tvm_ffi.py: attnsmith by the C++ API of tvm-ffi and nothing else. Its argument is
// libattnsmith_tvm_ffi.so; the driver is a stub, whose memory is the host's.
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

int allocations = 0;

// DLPackManagedTensorAllocator, as frameworks set it.
int allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void*,
             void (*)(void*, const char*, const char*)) {
    ++allocations;
    auto* const made = new DLManagedTensorVersioned{};
    made->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    made->dl_tensor = *prototype;
    made->dl_tensor.shape = new std::int64_t(prototype->shape[0]);
    made->dl_tensor.strides = new std::int64_t(1);
    made->dl_tensor.data =
        std::aligned_alloc(256, (static_cast<std::size_t>(prototype->shape[0]) + 255) / 256 * 256);
    made->deleter = [](DLManagedTensorVersioned*) {};
    *out = made;
    return 0;
}

struct Tensor {
    explicit Tensor(std::vector<std::int64_t> extents) : shape(std::move(extents)) {
        std::size_t bytes = 2;
        for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
        tensor.data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
        tensor.device = {kDLCUDA, 0};
        tensor.ndim = static_cast<int>(shape.size());
        tensor.dtype = {kDLBfloat, 16, 1};
        tensor.shape = shape.data();
    }
    Tensor(const Tensor&) = delete;
    std::vector<std::int64_t> shape;
    DLTensor tensor{};  // without strides: row-major and compact
};

}  // namespace

int main(int, char** arguments) {
    TVMFFIEnvSetDLPackManagedTensorAllocator(allocate, 0, nullptr);
    const ffi::Module module = ffi::Module::LoadFromFile(arguments[1]);
    const ffi::Function attention = module->GetFunction("attention").value();
    Tensor q({1, 1, 4, 64}), k({1, 64, 2, 64}), v({1, 64, 2, 64}), out({1, 1, 4, 64});
    try {
        attention(&q.tensor, &k.tensor, nullptr, &out.tensor);
    } catch (const ffi::Error& error) {
        std::printf("%s: %s\n", error.kind().c_str(), error.message().c_str());
    }
    for (int i = 0; i < 3; ++i) attention(&q.tensor, &k.tensor, &v.tensor, &out.tensor, nullptr, true, 0.5);
    std::printf("allocations: %d\n", allocations);
    Tensor longer_k({1, 65536, 2, 64}), longer_v({1, 65536, 2, 64});
    for (int i = 0; i < 3; ++i) attention(&q.tensor, &longer_k.tensor, &longer_v.tensor, &out.tensor);
    std::printf("a larger one: %d\n", allocations);
    module->GetFunction("register_global_functions").value()();
    const ffi::Function global = ffi::Function::GetGlobalRequired("attnsmith.attention");
    global(&q.tensor, &k.tensor, &v.tensor, &out.tensor, ffi::Any(), false, 0, nullptr, nullptr, 7);
    std::printf("global: %d\n", allocations);

    // By the packed ABI, on a thread that goes on while this one leaves.
    const auto packed = reinterpret_cast<TVMFFISafeCallType>(
        dlsym(dlopen(arguments[1], RTLD_LAZY | RTLD_NOLOAD), "__tvm_ffi_attention"));
    static std::atomic<int> calls = 0;
    static std::vector<TVMFFIAny>* const packed_arguments = new std::vector<TVMFFIAny>;
    for (Tensor* const one : {new Tensor({1, 1, 4, 64}), new Tensor({1, 64, 2, 64}),
                              new Tensor({1, 64, 2, 64}), new Tensor({1, 1, 4, 64})}) {
        TVMFFIAny value{};
        value.type_index = kTVMFFIDLTensorPtr;
        value.v_ptr = &one->tensor;
        packed_arguments->push_back(value);
    }
    std::thread([packed] {
        TVMFFIAny result{};
        while (packed(nullptr, packed_arguments->data(), 4, &result) == 0) ++calls;
        std::printf("a call failed\n");
    }).detach();
    while (calls < 100) std::this_thread::yield();
}
