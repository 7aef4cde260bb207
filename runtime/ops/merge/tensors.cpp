#include "ops/merge/tensors.hpp"

#include <fmt/format.h>

#include <string>

#include "problem/tensors/batch_tensors.hpp"
#include "problem/tensors/overlap.hpp"
#include "problem/tensors/tensor_checks.hpp"

namespace attnsmith::ops::merge {
namespace {

using namespace problem;

constexpr const char* kOutputMemory =
    "memory that no other tensor uses, or exactly the view that one state is";

class MergeChecker {
  public:
    MergeChecker(const AttentionSpec& spec, const MergeTensors& tensors)
        : spec_(spec), tensors_(tensors), o_{"o", tensors.o}, lse_{"lse", tensors.lse} {}

    BoundShape check() {
        check_counts();
        for (int i = 0; i < states(); ++i) {
            check_state(o_state(i));
            check_lse(lse_state(i), "the log-sum-exp of each state");
        }
        check_state(o_);
        check_output_elements(o_);
        if (spec_.lse) {
            check_lse(lse_, "memory for the log-sum-exp, which the spec asks for");
            check_output_elements(lse_);
        } else {
            refuse_extra(lse_, "a spec with lse");
        }
        check_overlaps();
        return {.batch = 1, .q_tokens = tokens_, .max_q_len = tokens_};
    }

  private:
    int states() const { return static_cast<int>(tensors_.o_states.size()); }
    Named o_state(int i) const { return {"o_states", tensors_.o_states[static_cast<std::size_t>(i)], i}; }
    Named lse_state(int i) const {
        return {"lse_states", tensors_.lse_states[static_cast<std::size_t>(i)], i};
    }

    void check_counts() const {
        const std::size_t count = tensors_.o_states.size();
        if (count == 0)
            refuse("o_states", "no states", fmt::format("1 to {} states", MergeTensors::kMaxStates));
        if (count > MergeTensors::kMaxStates) {
            refuse(
                "o_states", fmt::format("{} states", count),
                fmt::format("at most {}: merge in steps, with the result of one (its lse, too) as a state of "
                            "the next",
                            MergeTensors::kMaxStates));
        }
        if (tensors_.lse_states.size() != count) {
            refuse("lse_states", fmt::format("{} tensors", tensors_.lse_states.size()),
                   fmt::format("{}, as many as o_states", count));
        }
    }

    // One of o_states, or o. The first says how many tokens all have.
    void check_state(const Named& named) {
        check_present(named, "[q_tokens, q_heads, head_dim_vo]");
        check_dtype(named, spec_.dtype);
        check_shape(named, {tokens(), {spec_.q_heads, "q_heads"}, {spec_.head_dim_vo, "head_dim_vo"}});
        check_operand(named, spec_);
        tokens_ = named.extent(0);
    }

    void check_lse(const Named& named, std::string_view why) const {
        check_present(named, why);
        check_dtype(named, DType::fp32);
        check_shape(named, {tokens(), {spec_.q_heads, "q_heads"}});
        check_memory(named, size_of(DType::fp32));
    }

    Expected tokens() const { return {tokens_, tokens_ == kAny ? "q_tokens" : "q_tokens of o_states[0]"}; }

    void check_overlaps() const {
        for (int i = 0; i < states(); ++i) {
            refuse_other_view(o_, o_state(i));
            refuse_overlap(o_, lse_state(i));
            refuse_overlap(lse_, o_state(i));
            refuse_other_view(lse_, lse_state(i));
        }
        refuse_overlap(lse_, o_);
    }

    static void refuse_other_view(const Named& output, const Named& state) {
        if (is_same_view(output, state) || !may_overlap(output.tensor, state.tensor)) return;
        refuse(output.text(), fmt::format("memory that overlaps {}", state.text()), kOutputMemory);
    }

    const AttentionSpec& spec_;
    const MergeTensors& tensors_;
    const Named o_, lse_;
    std::int64_t tokens_ = kAny;
};

}  // namespace

BoundShape check_tensors(const Problem& problem, const Operands& operands) {
    const Batch& batch = operands.batch;
    BatchTensors(problem.spec, batch)
        .refuse_all(batch.max_q_len, batch.max_kv_len, "ops with keys; merge has none");
    return MergeChecker(problem.spec, operands.as<MergeTensors>()).check();
}

}  // namespace attnsmith::ops::merge
