// The exception by which torch's C++ carries one of Python's: thrown with torch's own type's name and layout,
// torch gives the caller the exception of Python again. That both are as here is tried when the kernels are
// activated (attnsmith/_operators/torch_kernels.py); if not, they are not used.
#pragma once

#include <exception>
#include <string>

#include "interface.h"

struct __attribute__((visibility("default"))) python_error : std::exception {
    // Takes the references over.
    python_error(const attnsmith_torch_functions& functions, void* of_type, void* of_value,
                 void* of_traceback)
        : type(of_type), value(of_value), traceback(of_traceback), python_(&functions) {}
    python_error(const python_error&) = delete;
    python_error& operator=(const python_error&) = delete;
    ~python_error() override {
        const int locked = python_->lock();
        for (void* const object : {traceback, value, type})
            if (object != nullptr) python_->decrement(object);
        python_->unlock(locked);
    }
    const char* what() const noexcept override { return message.c_str(); }

    void *type, *value, *traceback;
    std::string message = "attnsmith: an exception of Python";

  private:
    const attnsmith_torch_functions* python_;
};
