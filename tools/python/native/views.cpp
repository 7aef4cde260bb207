#include "views.hpp"

#include <cstring>

namespace attnsmith::python {
namespace {

// Of a sequence of at most kMostAxes integers. -1 for any other.
Py_ssize_t read_numbers(PyObject* sequence, std::int64_t* to) {
    const Object numbers(PyTuple_Check(sequence) ? Object::shared(sequence)
                                                 : Object(PySequence_Tuple(sequence)));
    if (!numbers) return -1;
    const Py_ssize_t count = PyTuple_Size(numbers.get());
    if (count > kMostAxes) return -1;
    for (Py_ssize_t i = 0; i < count; ++i) to[i] = PyLong_AsLongLong(PyTuple_GetItem(numbers.get(), i));
    return count;
}

}  // namespace

bool TensorsOfViews::read(PyObject* views, PyObject* max_q_len, PyObject* max_kv_len) {
    if (!PyList_CheckExact(views) || PyList_Size(views) != Py_ssize_t{kFields}) return false;
    tensors.size = sizeof tensors;
    batch.size = sizeof batch;
    batch.max_q_len = PyLong_AsLongLong(max_q_len);
    batch.max_kv_len = PyLong_AsLongLong(max_kv_len);
    for (std::size_t field = 0; field < kFields; ++field) {
        PyObject* const view = PyList_GetItem(views, static_cast<Py_ssize_t>(field));
        if (view == Py_None) continue;
        const attnsmith_dl_tensor* const tensor = read_view(view, field);
        if (tensor == nullptr) return false;
        if (field < kTensors.size())
            tensors.*kTensors[field] = tensor;
        else
            batch.*kBatch[field - kTensors.size()] = tensor;
    }
    return PyErr_Occurred() == nullptr;
}

const attnsmith_dl_tensor* TensorsOfViews::read_view(PyObject* view, std::size_t field) {
    if (!PyTuple_CheckExact(view) || PyTuple_Size(view) != 5) return nullptr;
    std::int64_t* const numbers = numbers_[field].data();
    const Py_ssize_t rank = read_numbers(PyTuple_GetItem(view, 1), numbers);
    if (rank < 0 || read_numbers(PyTuple_GetItem(view, 2), numbers + rank) != rank) return nullptr;
    const auto word = [&](Py_ssize_t i) { return PyLong_AsUnsignedLongLong(PyTuple_GetItem(view, i)); };
    const std::uint64_t kind = word(3), device = word(4);
    attnsmith_dl_tensor& tensor = memory_[field];
    tensor.data = reinterpret_cast<void*>(word(0));
    std::memcpy(&tensor.device, &device, sizeof device);
    tensor.ndim = static_cast<std::int32_t>(rank);
    tensor.dtype = {static_cast<std::uint8_t>(kind >> 32), static_cast<std::uint8_t>(kind >> 40),
                    static_cast<std::uint16_t>(kind >> 48)};
    tensor.shape = numbers;
    tensor.strides = numbers + rank;
    tensor.byte_offset = 0;
    return &tensor;
}

}  // namespace attnsmith::python
