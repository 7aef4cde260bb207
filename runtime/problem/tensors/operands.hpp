// The tensors whose addresses a launch may state anew, and what is asked of an address: what was asked of the
// one that was bound.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "attnsmith/batch.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::problem {

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

// Checks addresses for tensors that were bound. Immutable, and used from any thread.
class OperandChecks {
  public:
    // `tensors` and `batch` were checked, and so was the workspace. `problem` outlives this.
    OperandChecks(const Problem& problem, const AttentionTensors& tensors, const Batch& batch,
                  void* workspace, std::int64_t workspace_bytes);

    // Where each tensor is: as given, and as bound where null is given. Throws InvalidRequest naming
    // "addresses.k", or an output that the tensors would overlap; allocates only then.
    OperandAddresses check(const OperandAddresses& given) const;

  private:
    struct Base {
        bool is_bound = false;
        std::int64_t alignment = 1;
        std::int64_t bytes = 0;
    };
    // One without bytes begins behind all others and ends before them.
    struct Range {
        std::uintptr_t begin = UINTPTR_MAX, end = 0;

        static Range of(const void* data, std::int64_t bytes) {
            if (data == nullptr || bytes == 0) return {};
            const auto begin = reinterpret_cast<std::uintptr_t>(data);
            return {begin, begin + static_cast<std::uintptr_t>(bytes)};
        }
        // Without a branch: a launch asks it of many.
        bool meets(const Range& other) const {
            return static_cast<bool>(int{begin < other.end} & int{other.begin < end});
        }
    };
    // Behind the operands: the workspace, and the tensors of Batch.
    static constexpr std::size_t kWorkspace = kOperands, kRanges = kOperands + 10;

    void check_base(Operand which, const void* address) const;
    bool are_ranges_apart(const OperandAddresses& addresses) const;
    void check_elements(const OperandAddresses& addresses, const OperandAddresses& given) const;

    const Problem& problem_;
    AttentionTensors tensors_;
    Batch batch_;
    Tensor workspace_;
    std::array<Base, kOperands> bases_;
    OperandAddresses bound_;
    std::array<Range, kRanges> ranges_{};  // those of operands are stated at each launch
};

}  // namespace attnsmith::problem
