// A binding of tensors, to be right or to be spoiled: what the checks of tensors are asked.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "attnsmith/batch.hpp"
#include "ops/operands.hpp"

namespace attnsmith::test {

struct BoundTensors {
    AttentionSpec spec;
    AttentionTensors tensors;
    Batch batch;

    problem::BoundShape check() const {
        return ops::check_operands(problem::validate(spec, {}), problem::Operands::of(tensors, batch));
    }
};

// Every place is 16 MiB away from the next.
inline Tensor at(int place, DType dtype, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(
        reinterpret_cast<void*>(std::uintptr_t{0x1000000} * static_cast<unsigned>(place)), dtype, shape);
}

}  // namespace attnsmith::test
