// The module attnsmith._native: calls of the plain functions (attnsmith/_calls/attend.py) whose layout was
// met before, without a line of Python between the tensors and the launch; and methods of kernels
// (methods.hpp).
//
// attend(form, tensors, options) gives the results, or None for a call that it does not know or that did not
// succeed here: attend.py then does the same in Python, raises what there is to raise, and teaches the
// layout by learn().
#include "object.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dlpack_exchange.hpp"
#include "methods.hpp"
#include "recipes.hpp"

namespace attnsmith::python {
namespace {

constexpr Py_ssize_t kKeys = 1, kOut = 3;  // among the tensors of a form
constexpr int kValuesField = field_of(&attnsmith_tensors::v), kOutField = field_of(&attnsmith_tensors::o),
              kLseField = field_of(&attnsmith_tensors::lse);
constexpr Py_ssize_t kMostTensors = 20;

// What calls of a layout need besides a Recipe.
struct Known : Recipe {
    using Recipe::Recipe;

    std::vector<int> fields;          // of the tensors of the form
    bool has_values_in_keys = false;  // v lies in the tensor of k,
    std::int64_t values_offset = 0;   // from there on, in bytes
    Object new_out, out_words;        // what makes o of q, a method or function with arguments, and its words
    bool out_like_q = false;          // new_out takes q alone
    Object new_lse_arguments, lse_words;  // of q.new_empty_strided; empty: no lse
    Object form, options, kept_kernel;    // which the layout, or the recipe, has the addresses of
};

struct Framework {
    PyTypeObject* types[2] = {};  // torch.Tensor and torch.nn.Parameter
    DlpackExchange* exchange = nullptr;
    Object is_grad_enabled, requires_grad, is_neg, forward_ad, current_level, new_empty_strided;
};

struct State {
    Library library;
    int (*is_capturing)(void* stream, int* status) = nullptr;  // cuStreamIsCapturing
    int (*current_device)(int* device) = nullptr;              // cuCtxGetDevice
    bool takes_host = false;                                   // tensors of the host's memory, for tests
    Framework torch;
    Recipes<Known> recipes;
    std::uint64_t served = 0;
};

State& state() {
    static auto* const all = new State;  // not destroyed: the interpreter may be gone by then
    return *all;
}

// A tensor without elements needs none. NULL would be the address that was bound before.
bool has_memory(const attnsmith_dl_tensor& tensor) {
    if (tensor.data != nullptr) return true;
    for (std::int32_t axis = 0; axis < tensor.ndim; ++axis)
        if (tensor.shape[axis] == 0) return true;
    return false;
}

// Options are None, bools, numbers, words and tuples of them. Words count by their address, which the recipe
// keeps.
bool add_option(Layout& layout, PyObject* option, int depth = 0) {
    constexpr int kDeepest = 4;
    if (depth > kDeepest || !layout.fits()) return false;
    if (option == Py_None) {
        layout.add(std::uint64_t{1});
    } else if (option == Py_False || option == Py_True) {
        layout.add(std::uint64_t{option == Py_True ? 3u : 2u});
    } else if (PyUnicode_CheckExact(option)) {
        layout.add(std::uint64_t{4});
        layout.add(reinterpret_cast<std::uint64_t>(option));
    } else if (PyFloat_CheckExact(option)) {
        const double number = PyFloat_AsDouble(option);
        std::uint64_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        layout.add(std::uint64_t{5});
        layout.add(bits);
    } else if (PyLong_CheckExact(option)) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(option, &overflow);
        if (overflow != 0) return false;
        layout.add(std::uint64_t{6});
        layout.add(static_cast<std::uint64_t>(number));
    } else if (PyTuple_CheckExact(option)) {
        const Py_ssize_t count = PyTuple_Size(option);
        layout.add(std::uint64_t{7});
        layout.add(static_cast<std::uint64_t>(count));
        for (Py_ssize_t i = 0; i < count; ++i)
            if (!add_option(layout, PyTuple_GetItem(option, i), depth + 1)) return false;
    } else {
        return false;
    }
    return true;
}

bool is_true(PyObject* object) { return object == Py_True; }

// Views that negate their memory are of floats (2) and bfloat16 (4), of 16 bits and more.
bool may_be_negated(const attnsmith_dl_data_type& dtype) {
    return (dtype.code == 2 || dtype.code == 4) && dtype.bits >= 16;
}

// One call: its layout, and where its tensors are.
struct Call {
    Layout layout;
    std::array<void*, kMostTensors> data{};
    Py_ssize_t count = 0;
    std::int32_t device_type = 0, device = -1;

    // False for a call that is not known in any case. An exception of Python may be set.
    bool read(PyObject* form, PyObject* tensors, PyObject* options) {
        const Framework& torch = state().torch;
        if (torch.exchange == nullptr || !PyTuple_CheckExact(tensors) || !PyTuple_CheckExact(options))
            return false;
        count = PyTuple_Size(tensors);
        if (count > kMostTensors) return false;
        const Object level(PyObject_GetAttr(torch.forward_ad.get(), torch.current_level.get()));
        if (!level || PyLong_AsLong(level.get()) >= 0) return false;  // a tensor may have a tangent
        const Object has_gradients(PyObject_CallObject(torch.is_grad_enabled.get(), nullptr));
        if (!has_gradients) return false;
        layout.add(reinterpret_cast<std::uint64_t>(form));
        for (Py_ssize_t i = 0; i < count; ++i) {
            PyObject* const tensor = PyTuple_GetItem(tensors, i);
            if (tensor == Py_None) {
                layout.add(std::uint64_t{0});
                continue;
            }
            if (!read_tensor(tensor, i, is_true(has_gradients.get()))) return false;
        }
        return add_option(layout, options) && layout.fits();
    }

  private:
    bool read_tensor(PyObject* tensor, Py_ssize_t i, bool has_gradients) {
        const Framework& torch = state().torch;
        PyTypeObject* const type = Py_TYPE(tensor);
        if (type != torch.types[0] && type != torch.types[1]) return false;
        if (has_gradients) {
            const Object wants(PyObject_GetAttr(tensor, torch.requires_grad.get()));
            if (!wants || is_true(wants.get())) return false;
        }
        attnsmith_dl_tensor read{};
        if (torch.exchange->tensor_from_object(tensor, &read) != 0) return false;
        if (may_be_negated(read.dtype)) {
            const Object negated(PyObject_CallFunctionObjArgs(torch.is_neg.get(), tensor, nullptr));
            if (!negated || is_true(negated.get())) return false;
        }
        if (read.ndim > kMostAxes || (read.ndim > 0 && read.strides == nullptr)) return false;
        if (device < 0) {
            device_type = read.device.device_type;
            device = read.device.device_id;
            if (device_type != ATTNSMITH_DL_CUDA && !state().takes_host) return false;
            layout.add(static_cast<std::uint64_t>(device));
        } else if (read.device.device_type != device_type || read.device.device_id != device) {
            return false;
        }
        if (!has_memory(read)) return false;
        data[static_cast<std::size_t>(i)] = static_cast<char*>(read.data) + read.byte_offset;
        const std::uint64_t bits = reinterpret_cast<std::uint64_t>(data[static_cast<std::size_t>(i)]) & 15;
        layout.add(std::uint64_t{1} << 63 | std::uint64_t{read.dtype.code} << 32 |
                   std::uint64_t{read.dtype.bits} << 16 | bits << 8 | static_cast<std::uint64_t>(read.ndim));
        layout.add(read.ndim, read.shape);
        layout.add(read.ndim, read.strides);
        return true;
    }
};

// The memory of a tensor that was made just now.
bool data_of(PyObject* tensor, void*& data) {
    attnsmith_dl_tensor read{};
    if (state().torch.exchange->tensor_from_object(tensor, &read) != 0) return false;
    data = static_cast<char*>(read.data) + read.byte_offset;
    return read.data != nullptr && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

// The stream to launch on. False where a launch needs more than that.
bool find_stream(const Call& call, void*& stream) {
    const State& all = state();
    if (call.device_type != ATTNSMITH_DL_CUDA) return true;
    int device = -1, status = 0;
    return all.current_device(&device) == 0 && device == call.device &&
           all.torch.exchange->current_stream(call.device_type, call.device, &stream) == 0 &&
           all.is_capturing(stream, &status) == 0 && status == 0;
}

// The last call of this thread that was not known.
struct Missed {
    PyObject *form = nullptr, *tensors = nullptr;  // not owned: compared alone
    Layout layout{};
};
thread_local Missed missed;

// The results of a call of a known layout; none, perhaps with an exception of Python, of any other.
Object serve(PyObject* form, PyObject* tensors, PyObject* options) {
    State& all = state();
    Call call;
    if (!call.read(form, tensors, options)) return {};
    void* stream = nullptr;
    const std::shared_ptr<const Known> known = all.recipes.find(call.layout);
    if (known == nullptr) {
        missed = {form, tensors, call.layout};
        return {};
    }
    if (!find_stream(call, stream)) return {};
    const std::shared_ptr<Workspace> workspace = all.recipes.workspace(call.device, stream);
    if (workspace == nullptr) return {};

    Recipe::Arguments arguments;
    known->copy_to(arguments);
    for (std::size_t i = 0; i < known->fields.size(); ++i) arguments.point(known->fields[i], call.data[i]);
    if (known->has_values_in_keys)
        arguments.point(kValuesField, static_cast<char*>(call.data[kKeys]) + known->values_offset);
    PyObject* const q = PyTuple_GetItem(tensors, 0);
    Object out, lse;
    if (known->new_out) {
        out = known->out_like_q
                  ? Object(PyObject_CallFunctionObjArgs(known->new_out.get(), q, nullptr))
                  : Object(PyObject_Call(Object(PyObject_GetAttr(q, all.torch.new_empty_strided.get())).get(),
                                         known->new_out.get(), known->out_words.get()));
        void* data = nullptr;
        if (!out || !data_of(out.get(), data)) return {};
        arguments.point(kOutField, data);
    } else {
        out = Object::shared(PyTuple_GetItem(tensors, kOut));
    }
    if (known->new_lse_arguments) {
        lse = Object(PyObject_Call(Object(PyObject_GetAttr(q, all.torch.new_empty_strided.get())).get(),
                                   known->new_lse_arguments.get(), known->lse_words.get()));
        void* data = nullptr;
        if (!lse || !data_of(lse.get(), data)) return {};
        arguments.point(kLseField, data);
    }

    // A daemon thread may end where it waits for the lock: then nothing here may let go of an object.
    bool is_launched = false;
    PyObject* const kept[] = {out.release(), lse.release()};
    Py_BEGIN_ALLOW_THREADS;
    is_launched = known->launch(all.library, arguments, *workspace, stream);
    Py_END_ALLOW_THREADS;
    out = Object(kept[0]);
    lse = Object(kept[1]);
    if (!is_launched) return {};
    ++all.served;
    if (!lse) return out;
    Object both(PyTuple_New(2));
    if (both) {
        PyTuple_SetItem(both.get(), 0, out.release());
        PyTuple_SetItem(both.get(), 1, lse.release());
    }
    return both;
}

PyObject* attend(PyObject*, PyObject* arguments) {
    PyObject *form, *tensors, *options;
    if (!PyArg_UnpackTuple(arguments, "attend", 3, 3, &form, &tensors, &options)) return nullptr;
    Object results = serve(form, tensors, options);
    if (results) return results.release();
    // Python's own way says what is wrong; Ctrl-C and the like are nothing that is wrong.
    if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyErr_Clear();
    Py_RETURN_NONE;
}

// learn(form, tensors, options, kernel, address of it, attnsmith_tensors, attnsmith_batch, workspace_bytes,
// fields, values_offset or None, new_out, out_words, new_lse_arguments, lse_words): of the last four each may
// be None. new_out: a function of q, or with out_words the arguments of q.new_empty_strided.
PyObject* learn(PyObject*, PyObject* arguments) {
    PyObject* given[14];
    if (!PyArg_UnpackTuple(arguments, "learn", 14, 14, &given[0], &given[1], &given[2], &given[3], &given[4],
                           &given[5], &given[6], &given[7], &given[8], &given[9], &given[10], &given[11],
                           &given[12], &given[13]))
        return nullptr;
    const auto present = [&](int i) { return given[i] == Py_None ? Object() : Object::shared(given[i]); };
    Call call;
    // What attend() read before the call: another thread may have changed a tensor since.
    const bool is_same = call.read(given[0], given[1], given[2]) && missed.form == given[0] &&
                         missed.tensors == given[1] && missed.layout == call.layout;
    missed.form = missed.tensors = nullptr;
    if (!is_same) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    auto known = std::make_shared<Known>(
        address<const attnsmith_kernel*>(given[4]), *address<const attnsmith_tensors*>(given[5]),
        *address<const attnsmith_batch*>(given[6]), PyLong_AsSize_t(given[7]));
    for (Py_ssize_t i = 0; i < PyTuple_Size(given[8]); ++i)
        known->fields.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GetItem(given[8], i))));
    if (given[9] != Py_None) {
        known->has_values_in_keys = true;
        known->values_offset = PyLong_AsLongLong(given[9]);
    }
    known->new_out = present(10);
    known->out_words = present(11);
    known->out_like_q = !known->out_words;
    known->new_lse_arguments = present(12);
    known->lse_words = present(13);
    known->form = Object::shared(given[0]);
    known->options = Object::shared(given[2]);
    known->kept_kernel = Object::shared(given[3]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    state().recipes.add(call.layout, std::move(known), state().recipes.generation());
    Py_RETURN_TRUE;
}

// use(bind, launch_at, call_free, error_free, is_capturing, current_device): addresses of functions; 0 of the
// last two has tensors of the host's memory taken.
PyObject* use(PyObject*, PyObject* arguments) {
    PyObject* given[6];
    if (!PyArg_UnpackTuple(arguments, "use", 6, 6, &given[0], &given[1], &given[2], &given[3], &given[4],
                           &given[5]))
        return nullptr;
    State& all = state();
    all.library = {
        address<decltype(Library::bind)>(given[0]), address<decltype(Library::launch_at)>(given[1]),
        address<decltype(Library::call_free)>(given[2]), address<decltype(Library::error_free)>(given[3])};
    all.is_capturing = address<decltype(all.is_capturing)>(given[4]);
    all.current_device = address<decltype(all.current_device)>(given[5]);
    all.takes_host = all.is_capturing == nullptr;
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
}

// use_torch(Tensor, Parameter, is_grad_enabled, forward_ad): whether its tensors can be read here.
PyObject* use_torch(PyObject*, PyObject* arguments) {
    PyObject* given[4];
    if (!PyArg_UnpackTuple(arguments, "use_torch", 4, 4, &given[0], &given[1], &given[2], &given[3]))
        return nullptr;
    Framework& torch = state().torch;
    const Object capsule(PyObject_GetAttrString(given[0], "__dlpack_c_exchange_api__"));
    auto* exchange =
        capsule ? static_cast<DlpackExchange*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"))
                : nullptr;
    while (exchange != nullptr && exchange->version.major > kDlpackMajor) exchange = exchange->older;
    if (exchange == nullptr || exchange->version.major != kDlpackMajor ||
        exchange->tensor_from_object == nullptr || exchange->current_stream == nullptr) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    torch.is_grad_enabled = Object::shared(given[2]);
    torch.forward_ad = Object::shared(given[3]);
    torch.is_neg = Object(PyObject_GetAttrString(given[0], "is_neg"));
    torch.requires_grad = Object(PyUnicode_InternFromString("requires_grad"));
    torch.current_level = Object(PyUnicode_InternFromString("_current_level"));
    torch.new_empty_strided = Object(PyUnicode_InternFromString("new_empty_strided"));
    if (PyErr_Occurred() != nullptr) return nullptr;
    for (int i = 0; i < 2; ++i) {
        Py_INCREF(given[i]);
        torch.types[i] = reinterpret_cast<PyTypeObject*>(given[i]);
    }
    torch.exchange = exchange;
    Py_RETURN_TRUE;
}

// set_workspace(device, stream, address, bytes): of a GPU and stream. The caller keeps the memory.
PyObject* set_workspace(PyObject*, PyObject* arguments) {
    PyObject* given[4];
    if (!PyArg_UnpackTuple(arguments, "set_workspace", 4, 4, &given[0], &given[1], &given[2], &given[3]))
        return nullptr;
    const auto device = static_cast<std::int32_t>(PyLong_AsLong(given[0]));
    void *const stream = PyLong_AsVoidPtr(given[1]), *const data = PyLong_AsVoidPtr(given[2]);
    const std::size_t bytes = PyLong_AsSize_t(given[3]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_BEGIN_ALLOW_THREADS;  // while another thread launches
    state().recipes.set_workspace(device, stream, data, bytes);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* forget(PyObject*, PyObject*) {
    Recipes<Known>::Entries gone;  // destroyed with the interpreter's lock
    Py_BEGIN_ALLOW_THREADS;
    gone = state().recipes.forget();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject* served(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(state().served); }

PyMethodDef kMethods[] = {{"attend", attend, METH_VARARGS, nullptr},
                          {"learn", learn, METH_VARARGS, nullptr},
                          {"use", use, METH_VARARGS, nullptr},
                          {"use_torch", use_torch, METH_VARARGS, nullptr},
                          {"set_workspace", set_workspace, METH_VARARGS, nullptr},
                          {"forget", forget, METH_NOARGS, nullptr},
                          {"served", served, METH_NOARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};

// What the module keeps is of the interpreter that loads it first, and of no other one: neither of another
// that lives, which calls may come from, nor of one that comes when it has ended. There calls are Python's.
std::atomic<std::int64_t> owner{-1};

int load(PyObject* module) {
    constexpr std::int64_t kEnded = -2;
    const std::int64_t interpreter = PyInterpreterState_GetID(PyInterpreterState_Get());
    std::int64_t before = -1;
    if (owner.compare_exchange_strong(before, interpreter)) {
        Py_AtExit([] { owner = kEnded; });
    } else if (before != interpreter) {
        PyErr_SetString(PyExc_ImportError, "attnsmith._native is of another interpreter of this process");
        return -1;
    }
    return add_methods(module) ? 0 : -1;
}

PyModuleDef_Slot kSlots[] = {{Py_mod_exec, reinterpret_cast<void*>(load)}, {0, nullptr}};
PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_native", nullptr, 0, kMethods, kSlots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace attnsmith::python

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&attnsmith::python::kModule); }
