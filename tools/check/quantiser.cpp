#include "check/quantiser.hpp"

#include "check/small_floats.hpp"

namespace attnsmith::check {

Quantiser::Quantiser(DType from, DType to, double scale) : stored_(65536) {
    const double* const numbers = decode_table(from);
    for (std::size_t bits = 0; bits < stored_.size(); ++bits)
        stored_[bits] = static_cast<std::uint8_t>(encode(to, numbers[bits] / scale));
}

}  // namespace attnsmith::check
