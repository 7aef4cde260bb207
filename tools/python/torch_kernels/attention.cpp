// torch's flash attention, _scaled_dot_product_flash_attention and _flash_attention_forward, and its
// attention by cuDNN, _scaled_dot_product_cudnn_attention, on attnsmith without a line of Python, for layouts
// that were met before.
//
// A call of a known layout is served here: its tensors are read, its recipe is looked up, its results are
// made by torch's allocator, and attnsmith_run launches. Any other call goes to an operator of the package's
// with the same schema (attnsmith/_torch_backend.py), which serves it in Python, passes it on to torch's own
// kernel, or raises: a new layout, what attnsmith does not serve, a stream that is being captured, a
// workspace that is too small, and whatever fails here, so that the package says why. There the package
// teaches the layout by attnsmith_torch_learn(). Masks are cuDNN's: such calls go on to torch's own kernel.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "interface.h"
#include "libtorch.hpp"
#include "python/native/recipes.hpp"
#include "python_error.hpp"

namespace attnsmith::torch_kernels {
namespace {

using python::kMostAxes;
using python::Layout;
using python::Workspace;

enum Operator : std::int32_t { kSdpa, kFlash, kCudnn, kOperators };
constexpr const char* kNames[] = {"_scaled_dot_product_flash_attention", "_flash_attention_forward",
                                  "_scaled_dot_product_cudnn_attention"};
constexpr const char* kOthers[] = {"attnsmith::_scaled_dot_product_flash_attention",
                                   "attnsmith::_flash_attention_forward",
                                   "attnsmith::_scaled_dot_product_cudnn_attention"};
// The two of scaled_dot_product_attention have o, lse, two tensors that are undefined, the two lengths, two
// tensors of dropout and a debug mask for results.
constexpr bool is_sdpa(Operator number) { return number != kFlash; }

enum Field : int {
    q = python::field_of(&attnsmith_tensors::q),
    k = python::field_of(&attnsmith_tensors::k),
    v = python::field_of(&attnsmith_tensors::v),
    o = python::field_of(&attnsmith_tensors::o),
    lse = python::field_of(&attnsmith_tensors::lse),
    alibi_slopes = python::field_of(&attnsmith_tensors::alibi_slopes),
    q_indptr = python::field_of(&attnsmith_batch::q_indptr),
    kv_indptr = python::field_of(&attnsmith_batch::kv_indptr),
    kv_lens = python::field_of(&attnsmith_batch::kv_lens)
};

struct Recipe : python::Recipe {
    explicit Recipe(const attnsmith_torch_recipe& from)
        : python::Recipe(from.kernel, *from.tensors, *from.batch, from.workspace_bytes),
          out_shape(from.out_shape, from.out_shape + from.out_rank),
          out_strides(from.out_strides, from.out_strides + from.out_rank),
          lse_shape(from.lse_shape, from.lse_shape + from.lse_rank),
          lse_strides(from.lse_rank) {
        std::int64_t step = 1;
        for (std::size_t axis = from.lse_rank; axis-- > 0;) {
            lse_strides[axis] = step;
            step *= lse_shape[axis] > 1 ? lse_shape[axis] : 1;
        }
    }
    bool gives_lse() const { return !lse_shape.empty(); }

    std::vector<std::int64_t> out_shape, out_strides, lse_shape, lse_strides;
};
using Recipes = python::Recipes<Recipe>;

struct State {
    attnsmith_torch_functions functions{};
    Libtorch torch;
    std::int32_t fp32 = 0, int64 = 0, uint64 = 0, strided = 0, cuda = 0;
    python::Library attnsmith;
    LibraryHandle library = nullptr;
    std::atomic<std::uint64_t> served[kOperators] = {};
    Recipes recipes;
};

State& state() {
    static auto* const all = new State;  // not destroyed: threads of torch's may outlive static objects
    return *all;
}

// A call that the package's operator has now, on this thread.
struct Pending {
    bool can_be_learnt;
    std::uint64_t generation;  // of the recipes, before the call
    std::unique_ptr<Recipe> recipe{};
    void *type = nullptr, *value = nullptr, *traceback = nullptr;  // of the exception that it failed with
};
thread_local Pending* pending = nullptr;

// A new tensor, given back to torch unless it is handed on.
class NewTensor {
  public:
    NewTensor() = default;
    NewTensor(const NewTensor&) = delete;
    NewTensor& operator=(const NewTensor&) = delete;
    ~NewTensor() {
        if (handle_ != nullptr) state().torch.aoti_torch_delete_tensor_object(handle_);
    }
    bool make(std::int64_t rank, const std::int64_t* shape, const std::int64_t* strides, std::int32_t dtype,
              std::int32_t device_type, std::int32_t device) {
        return state().torch.aoti_torch_empty_strided(rank, shape, strides, dtype, device_type, device,
                                                      &handle_) == 0;
    }
    // Which Python has as None.
    bool make_undefined() { return state().torch.aoti_torch_new_uninitialized_tensor(&handle_) == 0; }
    TensorHandle get() const { return handle_; }
    Value hand_on() { return reinterpret_cast<Value>(std::exchange(handle_, nullptr)); }

  private:
    TensorHandle handle_ = nullptr;
};

class DeviceGuard {
  public:
    bool make(std::int32_t device) {
        return state().torch.aoti_torch_create_device_guard(device, &handle_) == 0;
    }
    DeviceGuard() = default;
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;
    ~DeviceGuard() {
        if (handle_ != nullptr) state().torch.aoti_torch_delete_device_guard(handle_);
    }

  private:
    DeviceGuardHandle handle_ = nullptr;
};

double as_double(Value value) {
    double number;
    std::memcpy(&number, &value, sizeof number);
    return number;
}
bool as_bool(Value value) {
    bool flag;
    std::memcpy(&flag, &value, sizeof flag);
    return flag;
}
const Value* optional(Value value) { return reinterpret_cast<const Value*>(value); }

// The arguments of one call, by the schema of its operator.
class Call {
  public:
    Call(Operator number, Value* stack) : number_(number), stack_(stack) {
        tensor(0, q);
        tensor(1, k);
        tensor(2, v);
        layout.add(static_cast<std::uint64_t>(number));
        if (is_sdpa(number)) {
            const Value* const rest = stack + (number == kSdpa ? 3 : 5);
            has_dropout_ = as_double(rest[0]) != 0.0;
            wants_debug_mask_ = as_bool(rest[2]);
            q_len = length(0);
            kv_len = length(1);
            layout.add(std::uint64_t{as_bool(rest[1])});
            number_of(rest[3]);
            if (number == kCudnn) {
                has_mask = optional(stack[3]) != nullptr;
                layout.add(std::uint64_t{as_bool(stack[4])});  // whether lse is wanted
            }
        } else {
            optional_tensor(3, q_indptr);
            optional_tensor(4, kv_indptr);
            layout.add(stack[5]);
            layout.add(stack[6]);
            has_dropout_ = as_double(stack[7]) != 0.0;
            layout.add(std::uint64_t{as_bool(stack[8])});
            wants_debug_mask_ = as_bool(stack[9]);
            for (const int i : {10, 11, 12}) number_of(stack[i]);
            optional_tensor(13, kv_lens);
            optional_tensor(14, alibi_slopes);
        }
    }

    // Reads the tensors. False where they are none that a recipe can be for.
    bool read() {
        const Libtorch& torch = state().torch;
        if (has_dropout_ || wants_debug_mask_ || has_mask) return false;
        std::uintptr_t bits = 0;
        for (int i = 0; i < count_; ++i) {
            Tensor& one = tensors_[i];
            std::int64_t rank = 0, *shape = nullptr, *strides = nullptr;
            std::int32_t dtype = 0, layout_of = 0, type = 0, index = 0;
            if (torch.aoti_torch_get_layout(one.handle, &layout_of) != 0 || layout_of != state().strided ||
                torch.aoti_torch_get_dim(one.handle, &rank) != 0 || rank > kMostAxes ||
                torch.aoti_torch_get_sizes(one.handle, &shape) != 0 ||
                torch.aoti_torch_get_strides(one.handle, &strides) != 0 ||
                torch.aoti_torch_get_dtype(one.handle, &dtype) != 0 ||
                torch.aoti_torch_get_device_type(one.handle, &type) != 0 ||
                torch.aoti_torch_get_device_index(one.handle, &index) != 0 ||
                torch.aoti_torch_get_data_ptr(one.handle, &one.data) != 0)
                return false;
            // NULL would be the address that was bound before.
            if (one.data == nullptr && std::find(shape, shape + rank, 0) == shape + rank) return false;
            if (i == 0) {
                device_type = type;
                device = index;
                dtype_of_q = dtype;
                layout.add(std::uint64_t{static_cast<std::uint32_t>(index)});
            } else if (type != device_type || index != device) {
                return false;
            }
            if (i < 3) bits |= reinterpret_cast<std::uintptr_t>(one.data);
            layout.add(static_cast<std::uint64_t>(one.field) << 32 | static_cast<std::uint64_t>(dtype) << 8 |
                       static_cast<std::uint64_t>(rank));
            layout.add(rank, shape);
            layout.add(rank, strides);
        }
        layout.add(bits & 15);
        return layout.fits();
    }

    void point(Recipe::Arguments& arguments) const {
        for (int i = 0; i < count_; ++i) arguments.point(tensors_[i].field, tensors_[i].data);
    }

    // Gives back what the stack holds: it is the kernel's.
    void release() const {
        for (const int i : {0, 1, 2}) delete_tensor(stack_[i]);
        switch (number_) {
            case kSdpa:
                return release_numbers({6});
            case kCudnn:
                return release_tensors({3}), release_numbers({8});
            default:
                return release_tensors({3, 4, 13, 14}), release_numbers({10, 11, 12});
        }
    }

    Layout layout;
    std::int32_t device_type = 0, device = 0, dtype_of_q = 0;
    std::int64_t q_len = 0, kv_len = 0;  // of SDPA
    bool has_mask = false;

  private:
    struct Tensor {
        TensorHandle handle;
        int field;
        void* data;
    };

    void tensor(int i, int field) {
        tensors_[count_++] = {reinterpret_cast<TensorHandle>(stack_[i]), field, nullptr};
    }
    void optional_tensor(int i, int field) {
        if (const Value* const given = optional(stack_[i]))
            tensors_[count_++] = {reinterpret_cast<TensorHandle>(*given), field, nullptr};
    }
    // Of a tensor [batch, heads, tokens, head_dim].
    std::int64_t length(int i) const {
        const Libtorch& torch = state().torch;
        std::int64_t rank = 0, *shape = nullptr;
        return torch.aoti_torch_get_dim(tensors_[i].handle, &rank) == 0 && rank > 2 &&
                       torch.aoti_torch_get_sizes(tensors_[i].handle, &shape) == 0
                   ? shape[2]
                   : 0;
    }
    void number_of(Value value) {
        const Value* const given = optional(value);
        layout.add(std::uint64_t{given != nullptr});
        layout.add(given != nullptr ? *given : 0);
    }
    void release_numbers(std::initializer_list<int> places) const {
        for (const int i : places) delete optional(stack_[i]);
    }
    void release_tensors(std::initializer_list<int> places) const {
        for (const int i : places) {
            if (optional(stack_[i]) == nullptr) continue;
            delete_tensor(*optional(stack_[i]));
            delete optional(stack_[i]);
        }
    }
    static void delete_tensor(Value value) {
        state().torch.aoti_torch_delete_tensor_object(reinterpret_cast<TensorHandle>(value));
    }

    Operator number_;
    Value* stack_;
    std::array<Tensor, 7> tensors_;
    int count_ = 0;
    bool has_dropout_ = false, wants_debug_mask_ = false;
};

// The stream that is current for torch; nothing where launches go elsewhere than usual.
bool current_stream(std::int32_t device, void*& stream) {
    const State& all = state();
    int status = 0;
    return all.torch.aoti_torch_get_current_cuda_stream(device, &stream) == 0 &&
           all.functions.is_capturing(stream, &status) == 0 && status == 0;
}

bool launch(const Call& call, const Recipe& recipe, Workspace& workspace, void* stream, TensorHandle out,
            TensorHandle log_sums) {
    const State& all = state();
    Recipe::Arguments arguments;
    recipe.copy_to(arguments);
    call.point(arguments);
    void *out_data = nullptr, *log_sums_data = nullptr;
    if (all.torch.aoti_torch_get_data_ptr(out, &out_data) != 0 || out_data == nullptr ||
        reinterpret_cast<std::uintptr_t>(out_data) % 16 != 0)
        return false;
    arguments.point(o, out_data);
    if (recipe.gives_lse()) {
        if (all.torch.aoti_torch_get_data_ptr(log_sums, &log_sums_data) != 0 || log_sums_data == nullptr)
            return false;
        arguments.point(lse, log_sums_data);
    }
    return recipe.launch(all.attnsmith, arguments, workspace, stream);
}

// Serves a call, whose results replace its arguments on the stack. False: nothing has changed.
bool serve(Operator number, Value* stack, Call& call) {
    State& all = state();
    void* stream = nullptr;
    DeviceGuard guard;
    if (call.device_type == all.cuda && (!guard.make(call.device) || !current_stream(call.device, stream)))
        return false;
    // In this order: a workspace that is found before a recipe is forgotten with it.
    const std::shared_ptr<Workspace> workspace = all.recipes.workspace(call.device, stream);
    if (workspace == nullptr) return false;
    const std::shared_ptr<const Recipe> recipe = all.recipes.find(call.layout);
    if (recipe == nullptr) return false;

    NewTensor out, log_sums;
    const auto rank = static_cast<std::int64_t>(recipe->out_shape.size());
    const auto lse_rank = static_cast<std::int64_t>(recipe->lse_shape.size());
    if (!out.make(rank, recipe->out_shape.data(), recipe->out_strides.data(), call.dtype_of_q,
                  call.device_type, call.device))
        return false;
    if (recipe->gives_lse() ? !log_sums.make(lse_rank, recipe->lse_shape.data(), recipe->lse_strides.data(),
                                             all.fp32, call.device_type, call.device)
                            : !log_sums.make_undefined())
        return false;
    // What dropout would need, and no debug mask.
    constexpr std::int64_t kTwo = 2, kNone = 0, kStep = 1;
    NewTensor rest[3];
    const std::int32_t kind = number == kCudnn ? all.int64 : all.uint64;
    const std::int64_t seed_rank = number == kCudnn ? 0 : 1;
    if (!rest[0].make(seed_rank, &kTwo, &kStep, kind, call.device_type, call.device) ||
        !rest[1].make(0, nullptr, nullptr, kind, call.device_type, call.device))
        return false;
    if (number == kCudnn ? !rest[2].make_undefined()
                         : !rest[2].make(1, &kNone, &kStep, call.dtype_of_q, call.device_type, call.device))
        return false;
    NewTensor undefined[2];
    if (is_sdpa(number) && (!undefined[0].make_undefined() || !undefined[1].make_undefined())) return false;
    if (!launch(call, *recipe, *workspace, stream, out.get(), log_sums.get())) return false;

    call.release();
    int at = 0;
    stack[at++] = out.hand_on();
    stack[at++] = log_sums.hand_on();
    if (is_sdpa(number)) {
        for (NewTensor& one : undefined) stack[at++] = one.hand_on();
        stack[at++] = static_cast<Value>(call.q_len);
        stack[at++] = static_cast<Value>(call.kv_len);
    }
    for (NewTensor& one : rest) stack[at++] = one.hand_on();
    all.served[number].fetch_add(1, std::memory_order_relaxed);
    return true;
}

// torch's own kernel by cuDNN, which these kernels stand in the place of. False: nothing has changed, and
// torch has said why on stderr.
bool run_cudnn(Value* stack, const Call& call) {
    const auto own = state().torch.aoti_torch_cuda__scaled_dot_product_cudnn_attention;
    if (own == nullptr) return false;
    constexpr std::size_t kTensors = 7;
    std::array<TensorHandle, kTensors> made{};
    std::int64_t q_len = 0, kv_len = 0;
    const auto tensor = [&](int i) { return reinterpret_cast<TensorHandle>(stack[i]); };
    if (own(tensor(0), tensor(1), tensor(2), reinterpret_cast<TensorHandle*>(stack[3]), as_bool(stack[4]),
            as_double(stack[5]), as_bool(stack[6]), as_bool(stack[7]), reinterpret_cast<double*>(stack[8]),
            &made[0], &made[1], &made[2], &made[3], &q_len, &kv_len, &made[4], &made[5], &made[6]) != 0)
        return false;
    call.release();
    int at = 0;
    for (std::size_t i = 0; i < kTensors; ++i) {
        stack[at++] = reinterpret_cast<Value>(made[i]);
        if (i != 3) continue;
        stack[at++] = static_cast<Value>(q_len);
        stack[at++] = static_cast<Value>(kv_len);
    }
    return true;
}

// The package's operator, which takes the arguments and leaves the results. Those of SDPA give their tensors
// alone: torch 2.11 takes the types of mixed results in the wrong order.
void call_other(Operator number, Value* stack, const Call& call, bool can_be_learnt) {
    State& all = state();
    Pending now{can_be_learnt, all.recipes.generation()};
    Pending* const before = std::exchange(pending, &now);
    const Status status = all.torch.torch_call_dispatcher(kOthers[number], "", stack, kAbiVersion);
    pending = before;
    if (now.value != nullptr) {
        for (int i = 0; status == 0 && i < (is_sdpa(number) ? 7 : 5); ++i)
            all.torch.aoti_torch_delete_tensor_object(reinterpret_cast<TensorHandle>(stack[i]));
        throw python_error(all.functions, now.type, now.value, now.traceback);
    }
    if (status != 0)
        throw std::runtime_error("attnsmith's operator could not be called; torch says why above");
    if (is_sdpa(number)) {
        for (const int i : {6, 5, 4}) stack[i + 2] = stack[i];
        stack[4] = static_cast<Value>(call.q_len);
        stack[5] = static_cast<Value>(call.kv_len);
    }
    if (now.recipe) all.recipes.add(call.layout, std::move(now.recipe), now.generation);
}

template <Operator number>
void kernel(Value* stack, std::uint64_t, std::uint64_t) {
    Call call(number, stack);
    // Within such an operator a call is of torch's own kernels, which it was passed on to.
    const bool is_known = pending == nullptr && call.read();
    if (is_known && serve(number, stack, call)) return;
    if (call.has_mask && run_cudnn(stack, call)) return;
    call_other(number, stack, call, is_known);
}

const char* find(void* library, const char* name, void*& function) {
    function = dlsym(library, name);
    return function == nullptr ? name : nullptr;
}

}  // namespace
}  // namespace attnsmith::torch_kernels

using attnsmith::torch_kernels::Libtorch;
using attnsmith::torch_kernels::pending;
using attnsmith::torch_kernels::state;

extern "C" {

const char* attnsmith_torch_open(const attnsmith_torch_functions* functions) {
    if (functions->size != sizeof *functions) return "a libattnsmith_torch of the package's version";
    auto& all = state();
    Libtorch torch;
    void* address = nullptr;
#define ATTNSMITH_FIND_IN(library, name)                                                                     \
    if (const char* const missing = attnsmith::torch_kernels::find(library, #name, address)) return missing; \
    torch.name = reinterpret_cast<decltype(torch.name)>(address);
#define ATTNSMITH_FIND(name, result, arguments) ATTNSMITH_FIND_IN(functions->torch_library, name)
    ATTNSMITH_TORCH_FUNCTIONS(ATTNSMITH_FIND)
#undef ATTNSMITH_FIND
#define ATTNSMITH_FIND(name, result, arguments) ATTNSMITH_FIND_IN(functions->cuda_library, name)
    if (functions->cuda_library != nullptr) {
        ATTNSMITH_TORCH_CUDA_FUNCTIONS(ATTNSMITH_FIND)
        // A torch without it has Python call its kernel.
        torch.aoti_torch_cuda__scaled_dot_product_cudnn_attention =
            reinterpret_cast<decltype(torch.aoti_torch_cuda__scaled_dot_product_cudnn_attention)>(
                dlsym(functions->cuda_library, "aoti_torch_cuda__scaled_dot_product_cudnn_attention"));
    }
#undef ATTNSMITH_FIND
#undef ATTNSMITH_FIND_IN
    all.functions = *functions;
    all.attnsmith = {functions->bind, functions->launch_at, functions->call_free, functions->error_free};
    all.torch = torch;
    all.fp32 = torch.aoti_torch_dtype_float32();
    all.int64 = torch.aoti_torch_dtype_int64();
    all.uint64 = torch.aoti_torch_dtype_uint64();
    all.strided = torch.aoti_torch_layout_strided();
    all.cuda = torch.aoti_torch_device_type_cuda();
    return nullptr;
}

int32_t attnsmith_torch_activate(const char* dispatch_key) {
    using namespace attnsmith::torch_kernels;
    State& all = state();
    if (all.torch.aoti_torch_library_init_impl("aten", dispatch_key, __FILE__, __LINE__, &all.library) != 0)
        return 0;
    constexpr BoxedKernel kKernels[] = {kernel<kSdpa>, kernel<kFlash>, kernel<kCudnn>};
    bool are_taken = true;
    for (int i = 0; i < kOperators && are_taken; ++i)
        are_taken = all.torch.torch_library_impl(all.library, kNames[i], kKernels[i], kAbiVersion) == 0;
    if (are_taken) return 1;
    attnsmith_torch_deactivate();
    return 0;
}

void attnsmith_torch_deactivate(void) {
    auto& all = state();
    if (all.library != nullptr)
        all.torch.aoti_torch_delete_library_object(std::exchange(all.library, nullptr));
}

void attnsmith_torch_learn(const attnsmith_torch_recipe* recipe) {
    if (pending != nullptr && pending->can_be_learnt && recipe->size == sizeof *recipe)
        pending->recipe = std::make_unique<attnsmith::torch_kernels::Recipe>(*recipe);
}

void attnsmith_torch_set_workspace(int32_t device, void* stream, void* data, size_t bytes) {
    state().recipes.set_workspace(device, stream, data, bytes);
}

void attnsmith_torch_forget(void) { state().recipes.forget(); }

void attnsmith_torch_fail(void* type, void* value, void* traceback) {
    if (pending == nullptr) return;
    for (void* const object : {type, value, traceback})
        if (object != nullptr) state().functions.increment(object);
    pending->type = type;
    pending->value = value;
    pending->traceback = traceback;
}

uint64_t attnsmith_torch_served(int32_t number) {
    return state().served[number].load(std::memory_order_relaxed);
}

}  // extern "C"
