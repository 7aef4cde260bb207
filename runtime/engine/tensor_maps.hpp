// The tensor maps that a kernel's arguments want, as the driver encodes them.
#pragma once

#include "driver/api.hpp"
#include "families/binding.hpp"

namespace attnsmith::engine {

// Into the argument block. Throws DriverError.
void encode_maps(const driver::Api& api, int device, families::Bound& bound);

}  // namespace attnsmith::engine
