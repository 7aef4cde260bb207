// What an attention that is timed computes on, and how much that is. Every sequence has exactly the planned
// lengths.
#pragma once

#include <memory>
#include <stop_token>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::bench {

// Several sets of random tensors: launches that take turns over them find nothing of their own in L2.
class AttentionInputs {
  public:
    // A stop leaves them unfilled: they are not to be bound then.
    AttentionInputs(Runtime& runtime, const problem::Problem& problem, const std::stop_token& stop = {});
    ~AttentionInputs();
    AttentionInputs(const AttentionInputs&) = delete;
    AttentionInputs& operator=(const AttentionInputs&) = delete;

    // A call on each set. The inputs must outlive them.
    std::vector<Call> bind(const Kernel& kernel) const;

  private:
    class Set;
    std::vector<std::unique_ptr<Set>> sets_;
};

// 2 (head_dim_qk + head_dim_vo) for each query head's visible pair of query and key.
double attention_flops(const problem::Problem& problem);
// q, k, v and o, each once.
double attention_bytes(const problem::Problem& problem);

}  // namespace attnsmith::bench
