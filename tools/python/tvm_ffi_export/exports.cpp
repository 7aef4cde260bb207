// attnsmith for every language that tvm-ffi has: functions of the TVM FFI ABI, which write to tensors that
// the caller passes.
//
// A call of a known layout reads its arguments, looks up its recipe and launches what was bound before. Any
// other call describes its problem as a request, prepares the kernel by the C API, and leaves a recipe.
// Neither this library nor its loading opens anything: libattnsmith, the driver and NVRTC are opened by the
// first call.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "arguments.hpp"
#include "attnsmith/attnsmith.h"
#include "failure.hpp"
#include "kernels.hpp"
#include "library.hpp"
#include "problem.hpp"
#include "python/native/recipes.hpp"
#include "signatures.hpp"
#include "tvm_ffi.hpp"

namespace attnsmith::tvm_ffi {
namespace {

struct State {
    Recipes recipes;
    Kernels kernels;
    Workspaces workspaces;
};
State& state() {
    static auto* const all = new State;  // not destroyed: threads may outlive static objects
    return *all;
}

// One number for a stream that every thread has its own of.
void* const kPerThreadStream = reinterpret_cast<void*>(std::uintptr_t{2});

void* current_stream(const Functions& ffi, std::int32_t device) {
    void* const stream = ffi.TVMFFIEnvGetStream(ATTNSMITH_DL_CUDA, device);
    if (stream == kPerThreadStream)
        throw refused("ValueError", "the current stream", "cudaStreamPerThread",
                      "a stream of its own, or the default one");
    return stream;
}

bool serve(const Library& library, const CallArguments& arguments, void* stream) {
    State& all = state();
    if (!arguments.is_known_by_layout) return false;
    const std::shared_ptr<python::Workspace> workspace = all.recipes.workspace(arguments.device, stream);
    if (workspace == nullptr) return false;
    const std::shared_ptr<const Recipe> recipe = all.recipes.find(arguments.layout);
    if (recipe == nullptr) return false;
    Recipe::Arguments filled;
    recipe->copy_to(filled);
    for (const Parameter& parameter : arguments.function.parameters)
        if (const View* const view = parameter.is_tensor() ? arguments.tensor(parameter.place) : nullptr)
            filled.point(parameter.place, view->data);
    const LibraryFunctions& call = library.call;
    return recipe->launch({call.bind, call.call_launch_at, call.call_free, call.error_free}, filled,
                          *workspace, stream);
}

void prepare_and_run(const Library& library, const CallArguments& arguments, void* stream) {
    State& all = state();
    const std::uint64_t generation = all.recipes.generation();
    const Problem problem(arguments);
    const Kernel kernel = all.kernels.get(library, arguments.device, problem.request);
    attnsmith_error* error = nullptr;
    std::size_t bytes = 0;
    const attnsmith_workspace_bounds bounds{sizeof bounds, problem.sequences, problem.q_tokens,
                                            problem.batch.max_kv_len};
    library.check(library.call.kernel_workspace_bytes(kernel.get(), &bounds, &bytes, &error), error);
    const auto workspace = all.workspaces.at_least(library, all.recipes, arguments.device, stream, bytes);
    attnsmith_code code = ATTNSMITH_OK;
    {
        const std::lock_guard in_order(workspace->mutex);
        const attnsmith_workspace memory{sizeof memory, workspace->data, workspace->bytes};
        code = library.call.run(kernel.get(), &problem.tensors, &problem.batch, &memory, stream, &error);
    }
    library.check(code, error);
    if (!arguments.is_known_by_layout) return;
    auto recipe = std::make_shared<const Recipe>(kernel, problem.tensors, problem.batch, bytes);
    all.recipes.add(arguments.layout, std::move(recipe), generation);
}

void merge(const Library& library, const CallArguments& arguments, void* stream) {
    const Merge problem(arguments);
    const Kernel kernel = state().kernels.get(library, arguments.device, problem.request);
    attnsmith_error* error = nullptr;
    library.check(library.call.run_merge(kernel.get(), &problem.tensors, nullptr, nullptr, stream, &error),
                  error);
}

void run(const Functions& ffi, const Function& function, const Any* given, std::int32_t count) {
    const CallArguments arguments(function, given, count);
    const Library& library = Library::opened();
    void* const stream = current_stream(ffi, arguments.device);
    if (function.storage == Storage::merge) return merge(library, arguments, stream);
    if (!serve(library, arguments, stream)) prepare_and_run(library, arguments, stream);
}

// An error about a field of the library's as one about the argument that it came from.
std::string renamed(const Function& function, std::string message) {
    constexpr std::string_view kBatchPrefix = "batch.";
    if (message.compare(0, kBatchPrefix.size(), kBatchPrefix) == 0) message.erase(0, kBatchPrefix.size());
    const auto begins_with = [&](std::string_view field) {
        return message.compare(0, field.size(), field) == 0 && message.size() > field.size() &&
               (message[field.size()] == '.' || message[field.size()] == ':');
    };
    for (const Parameter& parameter : function.parameters)
        if (parameter.field_name != nullptr && begins_with(parameter.field_name))
            return message.replace(0, std::strlen(parameter.field_name), parameter.name);
    for (const auto& [field, argument] :
         {std::pair("o_dtype", "out.dtype"), std::pair("kv_scale", "k_scale")})
        if (begins_with(field)) return message.replace(0, std::strlen(field), argument);
    return message;
}

// Runs a function of the ABI, which throws nothing. 0, or -1 with the error set.
template <class Work>
int guarded(const Function* function, const Work& work) noexcept {
    const Functions* const ffi = functions();
    const auto raise = [&](const char* kind, const char* message) {
        if (ffi != nullptr)
            ffi->TVMFFIErrorSetRaisedFromCStr(kind, message);
        else
            std::fprintf(stderr, "attnsmith: %s\n", message);
        return -1;
    };
    try {
        if (ffi == nullptr)
            throw Failure{"RuntimeError",
                          "this process has no libtvm_ffi.so, by which this library was called"};
        work(*ffi);
        return 0;
    } catch (const Failure& failure) {
        try {
            const std::string message =
                function == nullptr ? failure.message : renamed(*function, failure.message);
            return raise(failure.kind, message.c_str());
        } catch (...) {
            return raise(failure.kind, failure.message.c_str());
        }
    } catch (const std::bad_alloc&) {
        return raise("MemoryError", "the host has no memory left");
    } catch (const std::exception& error) {
        return raise("RuntimeError", error.what());
    } catch (...) {
        return raise("RuntimeError", "an unknown exception");
    }
}

int call(const Function& function, const Any* given, std::int32_t count, Any* result) noexcept {
    return guarded(&function, [&](const Functions& ffi) {
        run(ffi, function, given, count);
        *result = {kNone, 0, {0}};
    });
}

int describe(const Function& function, Any* result) noexcept {
    return guarded(nullptr, [&](const Functions& ffi) {
        const std::string text = function.signature();
        const ByteArray bytes{text.data(), text.size()};
        if (ffi.TVMFFIStringFromByteArray(&bytes, result) != 0) throw std::bad_alloc();
    });
}

void register_global(const Functions& ffi, const char* name, SafeCall function) {
    const std::string global = std::string("attnsmith.") + name;
    const ByteArray bytes{global.data(), global.size()};
    void* made = nullptr;
    const bool is_set = ffi.TVMFFIFunctionCreate(nullptr, function, nullptr, &made) == 0 &&
                        ffi.TVMFFIFunctionSetGlobal(&bytes, made, 1) == 0;
    if (made != nullptr) ffi.TVMFFIObjectDecRef(made);
    if (!is_set) throw Failure{"RuntimeError", global + " could not be registered"};
}

}  // namespace
}  // namespace attnsmith::tvm_ffi

using attnsmith::tvm_ffi::Any;

extern "C" {

// __tvm_ffi_NAME is a function, and __tvm_ffi__doc_NAME gives its signature.
#define ATTNSMITH_EXPORT(name)                                                                          \
    ATTNSMITH_API int __tvm_ffi_##name(void*, const Any* arguments, std::int32_t count, Any* result) {  \
        return attnsmith::tvm_ffi::call(attnsmith::tvm_ffi::name##_function, arguments, count, result); \
    }                                                                                                   \
    ATTNSMITH_API int __tvm_ffi__doc_##name(void*, const Any*, std::int32_t, Any* result) {             \
        return attnsmith::tvm_ffi::describe(attnsmith::tvm_ffi::name##_function, result);               \
    }
ATTNSMITH_TVM_FFI_EXPORTS(ATTNSMITH_EXPORT)
#undef ATTNSMITH_EXPORT

// Registers each of them as the global function "attnsmith.NAME", again if it is there. Gives nothing.
ATTNSMITH_API int __tvm_ffi_register_global_functions(void*, const Any*, std::int32_t, Any* result) {
    return attnsmith::tvm_ffi::guarded(nullptr, [&](const attnsmith::tvm_ffi::Functions& ffi) {
#define ATTNSMITH_REGISTER(name) attnsmith::tvm_ffi::register_global(ffi, #name, __tvm_ffi_##name);
        ATTNSMITH_TVM_FFI_EXPORTS(ATTNSMITH_REGISTER)
#undef ATTNSMITH_REGISTER
        *result = {attnsmith::tvm_ffi::kNone, 0, {0}};
    });
}

// For the Python package, before the first call: the files of libattnsmith, NVRTC and the driver; NULL: as
// the library finds them. 0 where it comes too late, and changes nothing; else 1.
ATTNSMITH_API std::int32_t attnsmith_tvm_ffi_use(const char* library, const char* nvrtc, const char* driver) {
    const auto text = [](const char* given) { return std::string(given == nullptr ? "" : given); };
    return attnsmith::tvm_ffi::use({text(library), text(nvrtc), text(driver)}) ? 1 : 0;
}

}  // extern "C"
