// Objects of Python in C++. Include before any header of the standard library, as Python.h wants it.
#pragma once

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x03090000  // so that one file serves every CPython from 3.9 on
#endif
#include <Python.h>

namespace attnsmith::python {

// A reference to an object of Python.
class Object {
  public:
    Object() = default;
    explicit Object(PyObject* taken) : object_(taken) {}
    static Object shared(PyObject* object) {
        Py_XINCREF(object);
        return Object(object);
    }
    Object(Object&& other) noexcept : object_(other.release()) {}
    Object& operator=(Object&& other) noexcept {
        PyObject* const before = object_;
        object_ = other.release();
        Py_XDECREF(before);
        return *this;
    }
    ~Object() { Py_XDECREF(object_); }
    PyObject* get() const { return object_; }
    PyObject* release() {
        PyObject* const object = object_;
        object_ = nullptr;
        return object;
    }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    PyObject* object_ = nullptr;
};

template <class Pointer>
Pointer address(PyObject* number) {
    return reinterpret_cast<Pointer>(PyLong_AsVoidPtr(number));
}

}  // namespace attnsmith::python
