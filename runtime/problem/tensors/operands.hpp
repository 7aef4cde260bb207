// What a caller binds; and the tensors whose addresses a launch may state anew.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "attnsmith/batch.hpp"

namespace attnsmith::problem {

// The tensors and the batch outlive it.
struct Operands {
    Op op;                // whose struct of tensors it is
    const void* tensors;  // that struct
    const Batch& batch;

    template <TensorsOfOp Tensors>
    static Operands of(const Tensors& tensors, const Batch& batch) {
        return {Tensors::kOp, &tensors, batch};
    }
    template <TensorsOfOp Tensors>
    bool holds() const {
        return op == Tensors::kOp;
    }
    // REQUIRES: holds<Tensors>()
    template <TensorsOfOp Tensors>
    const Tensors& as() const {
        return *static_cast<const Tensors*>(tensors);
    }
};

enum class Operand : std::uint8_t { q, k, v, q_pe, kpe, o, lse, sinks, alibi_slopes, k_scale, v_scale };
inline constexpr std::size_t kOperands = 11;

template <class Array>
auto& at(Array& of_operands, Operand which) {
    return of_operands[static_cast<std::size_t>(which)];
}

inline std::string_view name_of(Operand which) {
    constexpr std::array<std::string_view, kOperands> kNames = {
        "q", "k", "v", "q_pe", "kpe", "o", "lse", "sinks", "alibi_slopes", "k_scale", "v_scale"};
    return at(kNames, which);
}

// What errors call them within: "addresses.k".
inline constexpr std::string_view kWithinAddresses = "addresses.";

inline constexpr std::array<Tensor AttentionTensors::*, kOperands> kOperandTensors = {
    &AttentionTensors::q,       &AttentionTensors::k,      &AttentionTensors::v,
    &AttentionTensors::q_pe,    &AttentionTensors::kpe,    &AttentionTensors::o,
    &AttentionTensors::lse,     &AttentionTensors::sinks,  &AttentionTensors::alibi_slopes,
    &AttentionTensors::k_scale, &AttentionTensors::v_scale};

inline const Tensor& tensor_of(const AttentionTensors& tensors, Operand which) {
    return tensors.*at(kOperandTensors, which);
}
inline Tensor& tensor_of(AttentionTensors& tensors, Operand which) {
    return tensors.*at(kOperandTensors, which);
}

// Whether it is fp32 for itself, whatever the alignment class of the spec.
constexpr bool is_vector(Operand which) { return which > Operand::o; }

// An address for each.
using OperandAddresses = std::array<const void*, kOperands>;

inline OperandAddresses addresses_of(const TensorAddresses& a) {
    return {a.q, a.k, a.v, a.q_pe, a.kpe, a.o, a.lse, a.sinks, a.alibi_slopes, a.k_scale, a.v_scale};
}

}  // namespace attnsmith::problem
