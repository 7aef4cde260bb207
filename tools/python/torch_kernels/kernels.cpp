// Operators of torch on attnsmith without a line of Python, for layouts that were met before: torch's flash
// attention and its attention by cuDNN (attnsmith/_adapters/torch_backend.py), and those of
// torch.ops.attnsmith (attnsmith/_operators/torch_ops.py).
//
// A call of a known layout is served here: its tensors are read, its recipe is looked up, its results are
// made by torch's allocator, and attnsmith_run launches. Any other call goes to an operator of the package's
// with the same arguments, which serves it in Python, passes it on to torch's own kernel, or raises: a new
// layout, what attnsmith does not serve, a stream that is being captured, a workspace that is too small, and
// whatever fails here, so that the package says why. There the package teaches the layout by
// attnsmith_torch_learn(). Masks are cuDNN's: such calls go on to torch's own kernel.
#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "call.hpp"
#include "interface.h"
#include "libtorch.hpp"
#include "python/native/recipes.hpp"
#include "python_error.hpp"

namespace attnsmith::torch_kernels {
namespace {

using python::field_of;
using python::Workspace;

constexpr int kQ = field_of(&attnsmith_tensors::q), kK = field_of(&attnsmith_tensors::k),
              kOut = field_of(&attnsmith_tensors::o), kLse = field_of(&attnsmith_tensors::lse);
constexpr std::size_t kMostOperators = 32, kMostResults = 9;

struct Recipe : python::Recipe {
    explicit Recipe(const attnsmith_torch_recipe& from)
        : python::Recipe(from.kernel, *from.tensors, *from.batch, from.workspace_bytes),
          values_offset(from.values_offset),
          out_is_fp32(from.out_is_fp32 != 0),
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
    bool gives_lse() const { return taught().places[kLse] >= 0; }

    std::int64_t values_offset;
    bool out_is_fp32;
    std::vector<std::int64_t> out_shape, out_strides, lse_shape, lse_strides;
};
using Recipes = python::Recipes<Recipe>;

struct State {
    attnsmith_torch_functions functions{};
    Libtorch torch;
    std::int32_t fp32 = 0, int64 = 0, uint64 = 0, strided = 0, cuda = 0;
    python::Library attnsmith;
    Recipes recipes;
    std::mutex mutex;  // of what follows, whose operators stay: calls of other threads may use them
    std::array<std::unique_ptr<Operator>, kMostOperators> operators;
    std::array<LibraryHandle, kMostOperators> libraries{};
};

State& state() {
    static auto* const all = new State;  // not destroyed: threads of torch's may outlive static objects
    return *all;
}

// A call that the package's operator has now, on this thread.
struct Pending {
    const Call* can_be_learnt;
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
              std::int32_t type, std::int32_t index) {
        return state().torch.aoti_torch_empty_strided(rank, shape, strides, dtype, type, index, &handle_) ==
               0;
    }
    bool make(std::size_t rank, const std::int64_t* shape, const std::int64_t* strides, std::int32_t dtype,
              const Call& call) {
        return make(static_cast<std::int64_t>(rank), shape, strides, dtype, call.device_type, call.device);
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

// The stream that is current for torch; nothing where launches go elsewhere than usual.
bool current_stream(std::int32_t device, void*& stream) {
    const State& all = state();
    int status = 0;
    return all.torch.aoti_torch_get_current_cuda_stream != nullptr && all.functions.is_capturing != nullptr &&
           all.torch.aoti_torch_get_current_cuda_stream(device, &stream) == 0 &&
           all.functions.is_capturing(stream, &status) == 0 && status == 0;
}

// Makes a result by its letter, but for lengths.
bool make(char letter, const Call& call, const Recipe& recipe, NewTensor& made) {
    constexpr std::int64_t kTwo = 2, kNone = 0, kStep = 1;
    const State& all = state();
    switch (letter) {
        case 'o':
            return made.make(recipe.out_shape.size(), recipe.out_shape.data(), recipe.out_strides.data(),
                             recipe.out_is_fp32 ? all.fp32 : call.dtype_of_q, call);
        case 'l':
            if (!recipe.gives_lse()) return made.make_undefined();
            return made.make(recipe.lse_shape.size(), recipe.lse_shape.data(), recipe.lse_strides.data(),
                             all.fp32, call);
        case 's':
            return made.make(0, nullptr, nullptr, all.uint64, call);
        case 'i':
            return made.make(0, nullptr, nullptr, all.int64, call);
        case 'S':
            return made.make(1, &kTwo, &kStep, all.uint64, call);
        case 'e':
            return made.make(1, &kNone, &kStep, call.dtype_of_q, call);
        default:
            return made.make_undefined();
    }
}

bool is_length(char letter) { return letter == 'q' || letter == 'k'; }

// The address of a new result, which a kernel writes to.
bool point(Recipe::Arguments& arguments, int field, TensorHandle made) {
    void* data = nullptr;
    if (state().torch.aoti_torch_get_data_ptr(made, &data) != 0 || data == nullptr) return false;
    arguments.point(field, data);
    return field != kOut || reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

bool launch(const std::string& results, const Call& call, const Recipe& recipe, Workspace& workspace,
            void* stream, const std::array<NewTensor, kMostResults>& made) {
    Recipe::Arguments arguments;
    recipe.copy_to(arguments);
    call.point(arguments, recipe.values_offset);
    for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i] == 'o' && !point(arguments, kOut, made[i].get())) return false;
        if (results[i] == 'l' && recipe.gives_lse() && !point(arguments, kLse, made[i].get())) return false;
    }
    return recipe.launch(state().attnsmith, arguments, workspace, stream);
}

// Serves a call, whose results replace its arguments on the stack. False: nothing has changed.
bool serve(Operator& of, Value* stack, const Call& call) {
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

    std::array<NewTensor, kMostResults> made;
    for (std::size_t i = 0; i < of.results.size(); ++i)
        if (!is_length(of.results[i]) && !make(of.results[i], call, *recipe, made[i])) return false;
    if (!launch(of.results, call, *recipe, *workspace, stream, made)) return false;

    const auto q_len = static_cast<Value>(call.length(kQ)), kv_len = static_cast<Value>(call.length(kK));
    call.release();
    for (std::size_t i = 0; i < of.results.size(); ++i)
        stack[i] = of.results[i] == 'q' ? q_len : of.results[i] == 'k' ? kv_len : made[i].hand_on();
    of.served.fetch_add(1, std::memory_order_relaxed);
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
    double dropout;
    std::memcpy(&dropout, &stack[5], sizeof dropout);
    const auto flag = [&](int i) { return static_cast<std::int32_t>((stack[i] & 1) != 0); };
    if (own(as_tensor(stack[0]), as_tensor(stack[1]), as_tensor(stack[2]),
            reinterpret_cast<TensorHandle*>(stack[3]), flag(4), dropout, flag(6), flag(7),
            reinterpret_cast<double*>(stack[8]), &made[0], &made[1], &made[2], &made[3], &q_len, &kv_len,
            &made[4], &made[5], &made[6]) != 0)
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

// A gradient in the strides of o. torch 2.11 keeps cuDNN's graphs by the layouts of q, k, v and o alone: one
// that was made for a gradient of other strides gives wrong numbers, or reads memory that is not there.
bool align_gradient(TensorHandle& grad, TensorHandle o, NewTensor& aligned) {
    const Libtorch& torch = state().torch;
    std::int64_t rank = 0, rank_of_o = 0, *shape = nullptr, *strides = nullptr, *of_o = nullptr;
    std::int32_t dtype = 0, type = 0, index = 0;
    if (torch.aoti_torch_get_dim(grad, &rank) != 0 || torch.aoti_torch_get_dim(o, &rank_of_o) != 0 ||
        rank != rank_of_o || torch.aoti_torch_get_sizes(grad, &shape) != 0 ||
        torch.aoti_torch_get_strides(grad, &strides) != 0 || torch.aoti_torch_get_strides(o, &of_o) != 0 ||
        torch.aoti_torch_get_dtype(grad, &dtype) != 0 || torch.aoti_torch_get_device_type(grad, &type) != 0 ||
        torch.aoti_torch_get_device_index(grad, &index) != 0)
        return false;
    if (std::equal(strides, strides + rank, of_o)) return true;
    if (!aligned.make(rank, shape, of_o, dtype, type, index) ||
        torch.aoti_torch_copy_(aligned.get(), grad, 0) != 0)
        return false;
    grad = aligned.get();
    return true;
}

// torch's own backward by cuDNN. False: nothing has changed.
bool run_cudnn_backward(Value* stack, const Call& call) {
    const auto own = state().torch.aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward;
    constexpr int kOfO = 4;
    TensorHandle grad = as_tensor(stack[0]);
    NewTensor aligned;
    if (own == nullptr || !align_gradient(grad, as_tensor(stack[kOfO]), aligned)) return false;
    double dropout;
    std::memcpy(&dropout, &stack[13], sizeof dropout);
    const auto tensor = [&](int i) { return as_tensor(stack[i]); };
    TensorHandle made[3] = {};
    if (own(grad, tensor(1), tensor(2), tensor(3), tensor(kOfO), tensor(5), tensor(6), tensor(7), tensor(8),
            tensor(9), tensor(10), static_cast<std::int64_t>(stack[11]), static_cast<std::int64_t>(stack[12]),
            dropout, static_cast<std::int32_t>((stack[14] & 1) != 0), reinterpret_cast<double*>(stack[15]),
            &made[0], &made[1], &made[2]) != 0)
        return false;
    call.release();
    for (int i = 0; i < 3; ++i) stack[i] = reinterpret_cast<Value>(made[i]);
    return true;
}

// Whether all that a recipe was taught by is the call's own, or made for it: what Python made on the way is
// not there the next time.
bool is_of(const Call& call, const Recipe& recipe) {
    const Recipe::Arguments& taught = recipe.taught();
    Recipe::Arguments own;
    recipe.copy_to(own);
    for (auto& tensor : own.memory) tensor.data = nullptr;
    call.point(own, recipe.values_offset);
    for (std::size_t field = 0; field < python::kFields; ++field) {
        const std::int8_t place = taught.places[field];
        if (place < 0 || static_cast<int>(field) == kLse) continue;
        const auto at = static_cast<std::size_t>(place);
        const bool is_new = static_cast<int>(field) == kOut && own.memory[at].data == nullptr;
        if (!is_new && own.memory[at].data != taught.memory[at].data) return false;
    }
    return true;
}

// Throws what Python would raise first in the package's operator: an interrupt, or that there is no room for
// its frames.
void throw_what_waits() {
    const attnsmith_torch_functions& python = state().functions;
    if (python.is_ready == nullptr) return;
    const int locked = python.lock();
    void* const result = python.call(python.is_ready, nullptr);
    void *type = nullptr, *value = nullptr, *traceback = nullptr;
    if (result == nullptr)
        python.fetch(&type, &value, &traceback);
    else
        python.decrement(result);
    python.unlock(locked);
    if (type != nullptr) throw python_error(python, type, value, traceback);
}

// The package's operator, which takes the arguments and leaves the results. It gives tensors alone:
// torch 2.11 takes the types of mixed results in the wrong order.
void call_other(const Operator& of, Value* stack, const Call& call, bool can_be_learnt) {
    State& all = state();
    const auto q_len = static_cast<Value>(call.length(kQ)), kv_len = static_cast<Value>(call.length(kK));
    const Call::Words words(call, stack);
    throw_what_waits();
    Pending now{can_be_learnt ? &call : nullptr, all.recipes.generation()};
    Pending* const before = std::exchange(pending, &now);
    const Status status = all.torch.torch_call_dispatcher(of.other.c_str(), "", stack, kAbiVersion);
    pending = before;
    std::size_t at = 0;
    for (const char letter : of.results) at += is_length(letter) ? 0 : 1;
    if (now.value != nullptr) {
        while (status == 0 && at > 0) all.torch.aoti_torch_delete_tensor_object(as_tensor(stack[--at]));
        throw python_error(all.functions, now.type, now.value, now.traceback);
    }
    if (status != 0)
        throw std::runtime_error("attnsmith's operator could not be called; torch says why above");
    for (std::size_t i = of.results.size(); i-- > 0;)
        stack[i] = of.results[i] == 'q' ? q_len : of.results[i] == 'k' ? kv_len : stack[--at];
    if (now.recipe) all.recipes.add(call.layout, std::move(now.recipe), now.generation);
}

template <std::size_t number>
void kernel(Value* stack, std::uint64_t, std::uint64_t) {
    State& all = state();
    Operator& of = *all.operators[number];
    Call call(all.torch, of, number, stack);
    if (of.own == ATTNSMITH_TORCH_CUDNN_BACKWARD) {
        if (!run_cudnn_backward(stack, call)) call_other(of, stack, call, false);
        return;
    }
    // Within such an operator a call is of torch's own kernels, which it was passed on to.
    const bool is_known = pending == nullptr && !call.has_mask &&
                          !(of.refuses_gradients && all.torch.aoti_torch_grad_mode_is_enabled()) &&
                          call.read(all.strided);
    if (is_known && serve(of, stack, call)) return;
    if (call.has_mask && of.own == ATTNSMITH_TORCH_CUDNN && run_cudnn(stack, call)) return;
    call_other(of, stack, call, is_known);
}

template <std::size_t... numbers>
constexpr std::array<BoxedKernel, sizeof...(numbers)> kernels(std::index_sequence<numbers...>) {
    return {kernel<numbers>...};
}

const char* find(void* library, const char* name, void*& function) {
    function = dlsym(library, name);
    return function == nullptr ? name : nullptr;
}

// The one that has this name, or a new one; kMostOperators: there are too many.
std::size_t number_of(State& all, const attnsmith_torch_operator& description) {
    const std::string name = Operator::full_name(description);
    std::size_t number = 0;
    while (number < kMostOperators && all.operators[number] && all.operators[number]->name != name) ++number;
    if (number < kMostOperators && !all.operators[number])
        all.operators[number] = std::make_unique<Operator>(description);
    return number;
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
        // A torch without one of these has Python call its kernel.
#define ATTNSMITH_LOOK_FOR(name, result, arguments) \
    torch.name = reinterpret_cast<decltype(torch.name)>(dlsym(functions->cuda_library, #name));
        ATTNSMITH_TORCH_KERNELS(ATTNSMITH_LOOK_FOR)
#undef ATTNSMITH_LOOK_FOR
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

int32_t attnsmith_torch_add(const attnsmith_torch_operator* description, const char* dispatch_key) {
    using namespace attnsmith::torch_kernels;
    constexpr auto kKernels = kernels(std::make_index_sequence<kMostOperators>());
    State& all = state();
    if (description->size != sizeof *description || std::strlen(description->results) > kMostResults)
        return -1;
    const std::lock_guard lock(all.mutex);
    const std::size_t number = number_of(all, *description);
    if (number == kMostOperators || all.libraries[number] != nullptr) return -1;
    LibraryHandle& library = all.libraries[number];
    if (all.torch.aoti_torch_library_init_impl(description->space, dispatch_key, __FILE__, __LINE__,
                                               &library) != 0)
        return library = nullptr, -1;
    if (all.torch.torch_library_impl(library, description->name, kKernels[number], kAbiVersion) == 0)
        return static_cast<int32_t>(number);
    all.torch.aoti_torch_delete_library_object(std::exchange(library, nullptr));
    return -1;
}

void attnsmith_torch_remove(int32_t number) {
    auto& all = state();
    const std::lock_guard lock(all.mutex);
    if (auto& library = all.libraries[static_cast<std::size_t>(number)]; library != nullptr)
        all.torch.aoti_torch_delete_library_object(std::exchange(library, nullptr));
}

void attnsmith_torch_learn(const attnsmith_torch_recipe* recipe) {
    using namespace attnsmith::torch_kernels;
    if (pending == nullptr || pending->can_be_learnt == nullptr || recipe->size != sizeof *recipe) return;
    auto learnt = std::make_unique<Recipe>(*recipe);
    if (is_of(*pending->can_be_learnt, *learnt)) pending->recipe = std::move(learnt);
}

void attnsmith_torch_set_workspace(int32_t device, void* stream, void* data, size_t bytes) {
    state().recipes.set_workspace(device, stream, data, bytes);
}

void attnsmith_torch_forget(void) { state().recipes.forget(); }

int32_t attnsmith_torch_fail(void* type, void* value, void* traceback) {
    if (pending == nullptr) return 0;
    for (void* const object : {type, value, traceback})
        if (object != nullptr) state().functions.increment(object);
    pending->type = type;
    pending->value = value;
    pending->traceback = traceback;
    return 1;
}

uint64_t attnsmith_torch_served(int32_t number) {
    return state().operators[static_cast<std::size_t>(number)]->served.load(std::memory_order_relaxed);
}

}  // extern "C"
