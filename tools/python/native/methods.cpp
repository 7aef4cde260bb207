#include "methods.hpp"

#include <structmember.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "views.hpp"

namespace attnsmith::python {
namespace {

// What this file keeps of Python. Names are interned, as those of words in calls are.
struct Kept {
    PyTypeObject *method_type = nullptr, *launcher_type = nullptr;
    PyObject* bound_method = nullptr;  // types.MethodType
    PyObject *launcher = nullptr, *stream = nullptr;
    std::array<PyObject*, kTensors.size()> fields{};  // of attnsmith_tensors
};

Kept& kept() {
    static auto* const all = new Kept;  // not destroyed: the interpreter may be gone by then
    return *all;
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
    PyErr_SetString(PyExc_TypeError, "attnsmith makes objects of this type");
    return nullptr;
}

template <class Kind>
void free_object(Kind* object) {
    PyTypeObject* const type = Py_TYPE(reinterpret_cast<PyObject*>(object));
    PyObject_Free(object);
    Py_DECREF(type);
}

// ---- A method

// Of a class of Python: Call.launch. Functions of C are not bound to objects of such a class.
struct Method {
    PyObject ob_base;
    PyObject *function, *attributes;
};

// The result; NULL without an exception for a call that Python is to serve.
PyObject* launch(PyObject* arguments, PyObject* words);

PyObject* call_method(PyObject* self, PyObject* arguments, PyObject* words) {
    PyObject* const result = launch(arguments, words);
    if (result != nullptr || PyErr_Occurred() != nullptr) return result;
    return PyObject_Call(reinterpret_cast<const Method*>(self)->function, arguments, words);
}

PyObject* bind_method(PyObject* self, PyObject* instance, PyObject*) {
    if (instance == nullptr || instance == Py_None) return Object::shared(self).release();
    return PyObject_CallFunctionObjArgs(kept().bound_method, self, instance, nullptr);
}

void free_method(Method* self) {
    Py_CLEAR(self->function);
    Py_CLEAR(self->attributes);
    free_object(self);
}

PyMemberDef kMethodMembers[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Method, attributes), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyType_Slot kMethodSlots[] = {{Py_tp_new, reinterpret_cast<void*>(refuse_new)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(free_method)},
                              {Py_tp_call, reinterpret_cast<void*>(call_method)},
                              {Py_tp_descr_get, reinterpret_cast<void*>(bind_method)},
                              {Py_tp_members, kMethodMembers},
                              {0, nullptr}};
PyType_Spec kMethodType = {"attnsmith._native.Method", sizeof(Method), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_METHOD_DESCRIPTOR, kMethodSlots};

// Raises what error(code, attnsmith_error*) gives, which frees the latter.
void raise(PyObject* error, attnsmith_code code, attnsmith_error* of_library) {
    const Object number(PyLong_FromLong(code)), given(PyLong_FromVoidPtr(of_library));
    if (!number || !given) return;
    const Object raised(PyObject_CallFunctionObjArgs(error, number.get(), given.get(), nullptr));
    if (raised) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.get())), raised.get());
}

// ---- Call.launch

// What launches of a Call need. It may outlive the Call while another thread launches.
struct Launcher {
    PyObject ob_base;
    decltype(&attnsmith_launch) launch;
    decltype(&attnsmith_call_launch_at) launch_at;
    const attnsmith_call* call;
    PyObject* keeper;          // frees the call
    PyObject* current_stream;  // a function
    PyObject* error;           // of a code and an attnsmith_error*: the exception
};

void free_launcher(Launcher* self) {
    Py_CLEAR(self->keeper);
    Py_CLEAR(self->current_stream);
    Py_CLEAR(self->error);
    free_object(self);
}

PyType_Slot kLauncherSlots[] = {{Py_tp_new, reinterpret_cast<void*>(refuse_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(free_launcher)},
                                {0, nullptr}};
PyType_Spec kLauncherType = {"attnsmith._native.Launcher", sizeof(Launcher), 0, Py_TPFLAGS_DEFAULT,
                             kLauncherSlots};

// launcher(addresses of attnsmith_launch and attnsmith_call_launch_at, of the call, keeper, current_stream,
// error).
PyObject* launcher(PyObject*, PyObject* arguments) {
    PyObject* given[6];
    if (!PyArg_UnpackTuple(arguments, "launcher", 6, 6, &given[0], &given[1], &given[2], &given[3], &given[4],
                           &given[5]))
        return nullptr;
    const auto launch = address<decltype(Launcher::launch)>(given[0]);
    const auto launch_at = address<decltype(Launcher::launch_at)>(given[1]);
    const auto call = address<decltype(Launcher::call)>(given[2]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    auto* const made = PyObject_New(Launcher, kept().launcher_type);
    if (made == nullptr) return nullptr;
    made->launch = launch;
    made->launch_at = launch_at;
    made->call = call;
    made->keeper = Object::shared(given[3]).release();
    made->current_stream = Object::shared(given[4]).release();
    made->error = Object::shared(given[5]).release();
    return reinterpret_cast<PyObject*>(made);
}

// One launch. Nothing in it has a destructor: see launch().
struct Launch {
    Launcher* launcher = nullptr;  // a reference
    void* stream = nullptr;
    bool has_addresses = false;
    std::array<void*, kTensors.size()> addresses{};
};

// Of an int that fits; bool and what has __index__ are for Python.
bool read_address(PyObject* number, void*& to) {
    if (!PyLong_CheckExact(number)) return false;
    to = reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(number));
    if (PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();  // Python says what does not fit
    return false;
}

bool read_stream(PyObject* stream, Launch& launch) {
    if (stream != nullptr && stream != Py_None) return read_address(stream, launch.stream);
    PyObject* const current = PyObject_CallObject(launch.launcher->current_stream, nullptr);
    const bool is_read = current != nullptr && read_address(current, launch.stream);
    Py_XDECREF(current);
    return is_read;
}

// The addresses that replace tensors, and `stream`.
bool read_words(PyObject* words, Launch& launch, PyObject*& stream) {
    Py_ssize_t at = 0;
    PyObject *word, *value;
    while (PyDict_Next(words, &at, &word, &value)) {
        if (word == kept().stream) {
            if (stream != nullptr) return false;
            stream = value;
            continue;
        }
        std::size_t field = 0;
        while (field < kTensors.size() && kept().fields[field] != word) ++field;
        if (field == kTensors.size()) return false;
        if (value == Py_None) continue;
        if (!read_address(value, launch.addresses[field]) || launch.addresses[field] == nullptr) return false;
        launch.has_addresses = true;
    }
    return true;
}

// False for a call that Python is to serve; an exception of Python may be set.
bool read(PyObject* arguments, PyObject* words, Launch& launch) {
    const Py_ssize_t count = PyTuple_Size(arguments);
    if (count != 1 && count != 2) return false;
    PyObject* const found = PyObject_GetAttr(PyTuple_GetItem(arguments, 0), kept().launcher);
    if (found == nullptr) {
        PyErr_Clear();
        return false;
    }
    if (Py_TYPE(found) != kept().launcher_type) {  // None of a Call that is freed
        Py_DECREF(found);
        return false;
    }
    launch.launcher = reinterpret_cast<Launcher*>(found);
    PyObject* stream = count == 2 ? PyTuple_GetItem(arguments, 1) : nullptr;
    return (words == nullptr || read_words(words, launch, stream)) && read_stream(stream, launch);
}

// Launches without the interpreter's lock, since the driver waits where a stream's queue is full. At the end
// of the interpreter a daemon thread ends where it wants the lock back: destructors of this function would
// run without it.
PyObject* launch(PyObject* arguments, PyObject* words) {
    Launch asked;
    PyObject* result = nullptr;
    if (read(arguments, words, asked)) {
        const Launcher& by = *asked.launcher;
        attnsmith_error* error = nullptr;
        attnsmith_code code;
        const attnsmith_tensor_addresses at = tensor_addresses(asked.addresses);
        Py_BEGIN_ALLOW_THREADS;
        code = asked.has_addresses ? by.launch_at(by.call, &at, asked.stream, &error)
                                   : by.launch(by.call, asked.stream, &error);
        Py_END_ALLOW_THREADS;
        if (code == ATTNSMITH_OK) {
            Py_INCREF(Py_None);
            result = Py_None;
        } else {
            raise(by.error, code, error);
        }
    }
    Py_XDECREF(reinterpret_cast<PyObject*>(asked.launcher));
    return result;
}

// launch_method(function, names of the fields of attnsmith_tensors).
PyObject* launch_method(PyObject*, PyObject* arguments) {
    PyObject *function, *fields;
    if (!PyArg_UnpackTuple(arguments, "launch_method", 2, 2, &function, &fields)) return nullptr;
    if (!PyTuple_CheckExact(fields) || PyTuple_Size(fields) != Py_ssize_t{kTensors.size()}) {
        PyErr_SetString(PyExc_TypeError, "launch_method() needs a name for each tensor");
        return nullptr;
    }
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
        PyObject* name = Object::shared(PyTuple_GetItem(fields, static_cast<Py_ssize_t>(i))).release();
        PyUnicode_InternInPlace(&name);
        Py_XDECREF(kept().fields[i]);
        kept().fields[i] = name;
    }
    auto* const made = PyObject_New(Method, kept().method_type);
    if (made == nullptr) return nullptr;
    made->function = Object::shared(function).release();
    made->attributes = nullptr;
    return reinterpret_cast<PyObject*>(made);
}

// ---- Kernel.bind

// bind(address of attnsmith_bind, of the kernel, views of all fields, max_q_len, max_kv_len, workspace's
// address or None, its bytes, error): the address of the call; None for views that Python is to look at.
PyObject* bind(PyObject*, PyObject* arguments) {
    PyObject* given[8];
    if (!PyArg_UnpackTuple(arguments, "bind", 8, 8, &given[0], &given[1], &given[2], &given[3], &given[4],
                           &given[5], &given[6], &given[7]))
        return nullptr;
    const auto function = address<decltype(&attnsmith_bind)>(given[0]);
    const auto kernel = address<const attnsmith_kernel*>(given[1]);
    const bool has_workspace = given[5] != Py_None;
    const attnsmith_workspace workspace{sizeof workspace, has_workspace ? address<void*>(given[5]) : nullptr,
                                        PyLong_AsSize_t(given[6])};
    if (PyErr_Occurred() != nullptr) return nullptr;
    TensorsOfViews bound;
    if (!bound.read(given[2], given[3], given[4])) {
        if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    attnsmith_call* call = nullptr;
    attnsmith_error* error = nullptr;
    attnsmith_code code;
    Py_BEGIN_ALLOW_THREADS;
    code =
        function(kernel, &bound.tensors, &bound.batch, has_workspace ? &workspace : nullptr, &call, &error);
    Py_END_ALLOW_THREADS;
    if (code == ATTNSMITH_OK) return PyLong_FromVoidPtr(call);
    raise(given[7], code, error);
    return nullptr;
}

PyMethodDef kFunctions[] = {{"launcher", launcher, METH_VARARGS, nullptr},
                            {"launch_method", launch_method, METH_VARARGS, nullptr},
                            {"bind", bind, METH_VARARGS, nullptr},
                            {nullptr, nullptr, 0, nullptr}};

bool make_types() {
    Kept& all = kept();
    if (all.method_type != nullptr) return true;  // by another import of this interpreter
    const Object types(PyImport_ImportModule("types"));
    if (!types) return false;
    all.bound_method = PyObject_GetAttrString(types.get(), "MethodType");
    all.launcher = PyUnicode_InternFromString("_launcher");
    all.stream = PyUnicode_InternFromString("stream");
    all.launcher_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kLauncherType));
    if (PyErr_Occurred() != nullptr) return false;
    all.method_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kMethodType));
    return all.method_type != nullptr;
}

}  // namespace

bool add_methods(PyObject* module) { return make_types() && PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace attnsmith::python
