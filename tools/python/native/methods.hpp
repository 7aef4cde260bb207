// Of attnsmith/kernels.py: Call.launch, and what takes longest in Kernel.bind.
//
// launch_method() makes the method of a function: it serves plain calls, and hands any other, with its
// arguments as they are, to that function. So what is wrong with a call is said in one place, in Python.
#pragma once

#include "object.hpp"

namespace attnsmith::python {

// Adds launcher(), launch_method() and bind(). False with an exception of Python.
bool add_methods(PyObject* module);

}  // namespace attnsmith::python
