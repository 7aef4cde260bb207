// The structs of the C ABI from views, the tuples of attnsmith/_tensors/views.py.
#pragma once

#include "object.hpp"

#include <array>
#include <cstdint>

#include "attnsmith/attnsmith.h"
#include "python/fields.hpp"

namespace attnsmith::python {

// The tensors of one attnsmith_bind.
class TensorsOfViews {
  public:
    attnsmith_tensors tensors{};
    attnsmith_batch batch{};

    // `views`: a list of a view or None for each field. False, maybe with an exception of Python, for what
    // these structs have no room for.
    bool read(PyObject* views, PyObject* max_q_len, PyObject* max_kv_len);

  private:
    const attnsmith_dl_tensor* read_view(PyObject* view, std::size_t field);

    std::array<attnsmith_dl_tensor, kFields> memory_;
    std::array<std::array<std::int64_t, 2 * kMostAxes>, kFields> numbers_;  // shapes, then strides
};

}  // namespace attnsmith::python
