// What is asked of an address that a launch states anew: what was asked of the one that was bound.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "attnsmith/batch.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/operands.hpp"

namespace attnsmith::ops {

using problem::kOperands, problem::Operand, problem::OperandAddresses, problem::Problem;

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

}  // namespace attnsmith::ops
