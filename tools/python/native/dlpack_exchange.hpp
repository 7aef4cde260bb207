// DLPack's C exchange API (version 1.3), by which a framework shows its tensors without a capsule: the
// capsule "dlpack_exchange_api" of a type's __dlpack_c_exchange_api__. A test compares it with torch's
// dlpack.h.
#pragma once

#include <cstdint>

#include "attnsmith/attnsmith.h"

namespace attnsmith::python {

inline constexpr std::uint32_t kDlpackMajor = 1;

struct DlpackExchange {
    struct Version {
        std::uint32_t major, minor;
    } version;
    DlpackExchange* older;
    // Not used here.
    void (*allocate)();
    void (*managed_from_object)();
    void (*object_from_managed)();
    // A tensor of the object's memory, which lives as the object does. Not 0: an exception of Python is set.
    // May be NULL.
    int (*tensor_from_object)(void* object, attnsmith_dl_tensor* tensor);
    int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

}  // namespace attnsmith::python
