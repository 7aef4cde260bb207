// The tensor maps that a kernel's arguments want, as the driver encodes them.
#pragma once

#include <cstddef>

#include "driver/api.hpp"
#include "families/binding.hpp"

namespace attnsmith::engine {

// Into the argument block. Throws DriverError.
void encode_maps(const driver::Api& api, int device, families::Bound& bound);

// Has the maps of a copied argument block begin where the tensors are. Throws DriverError.
void move_maps(const driver::Api& api, int device, const families::Bound& bound,
               const problem::OperandAddresses& addresses, std::byte* block);

}  // namespace attnsmith::engine
