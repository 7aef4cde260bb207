// Op merge through the C ABI with the stub of the CUDA driver.
#include <deque>

#include "abi/merge_arguments.h"
#include "c_api/device_session.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

constexpr std::int64_t kTokens = 8;
constexpr std::size_t kMostStates = 32;

attnsmith_spec merge_spec(std::int32_t lse) {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    spec.op = ATTNSMITH_OP_MERGE;
    spec.head_dim_vo = kDim;
    spec.q_heads = kHeads;
    spec.lse = lse;
    return spec;
}

const attnsmith_kernel* merge_kernel() {
    static const KernelHandle kernel = prepare(merge_spec(0));
    return kernel.get();
}

const attnsmith_kernel* lse_kernel() {
    static const KernelHandle kernel = prepare(merge_spec(1));
    return kernel.get();
}

// States of merge_spec(), and memory for what they give.
struct MergeOperands {
    std::deque<DlTensor> o_states, lse_states;
    DlTensor o{memory[2], {kTokens, kHeads, kDim}};
    DlTensor lse{memory[3], {kTokens, kHeads}};

    explicit MergeOperands(std::size_t states) {
        constexpr std::size_t kOBytes = kTokens * kHeads * kDim * 2, kLseBytes = kTokens * kHeads * 4;
        for (std::size_t i = 0; i < states; ++i) {
            o_states.emplace_back(memory[0] + i * kOBytes, std::vector<std::int64_t>{kTokens, kHeads, kDim});
            lse_states.emplace_back(memory[1] + i * kLseBytes, std::vector<std::int64_t>{kTokens, kHeads});
            lse_states.back().dtype(ATTNSMITH_DL_FLOAT, 32);
        }
        lse.dtype(ATTNSMITH_DL_FLOAT, 32);
    }

    // Valid until the next call and the next change of this object.
    attnsmith_merge_tensors tensors(bool with_lse = true) {
        views_.clear();
        for (DlTensor& state : o_states) views_.push_back(state.get());
        for (DlTensor& state : lse_states) views_.push_back(state.get());
        return {sizeof(attnsmith_merge_tensors), o_states.size(), views_.data(),
                views_.data() + o_states.size(), o.get(),         with_lse ? lse.get() : nullptr};
    }

  private:
    std::vector<const attnsmith_dl_tensor*> views_;
};

CallHandle bind_merge(const attnsmith_kernel* kernel, const attnsmith_merge_tensors& tensors) {
    attnsmith_call* call = nullptr;
    must(attnsmith_bind_merge, kernel, &tensors, nullptr, nullptr, &call);
    return CallHandle(call);
}

// The answers of bind_merge and of run_merge, which have to be one.
Answer try_merge(const attnsmith_kernel* kernel, const attnsmith_merge_tensors& tensors) {
    const fake_cuda_state& state = fake_driver();
    const int allocations = state.allocations, launches = state.launches;
    attnsmith_call* call = nullptr;
    const Answer bound = ask(attnsmith_bind_merge, kernel, &tensors, nullptr, nullptr, &call);
    attnsmith_call_free(call);
    CHECK(state.launches == launches);
    const Answer run = ask(attnsmith_run_merge, kernel, &tensors, nullptr, nullptr, nullptr);
    CHECK(bound.details == run.details);
    CHECK((bound.code == ATTNSMITH_OK) == (call != nullptr));
    CHECK((run.code == ATTNSMITH_OK) == (state.launches == launches + 1));
    CHECK(state.allocations == allocations);
    return run;
}

// Merging two states, with lse, of which one thing was changed.
template <typename Change>
Answer with(Change change) {
    MergeOperands operands(2);
    change(operands);
    return try_merge(lse_kernel(), operands.tensors());
}

abi::MergeArguments launched(const attnsmith_call* call) { return launched_with<abi::MergeArguments>(call); }

}  // namespace

TEST_CASE("A merge kernel tells what it is") {
    for (const std::int32_t lse : {0, 1}) {
        const attnsmith_kernel* const kernel = lse ? lse_kernel() : merge_kernel();
        attnsmith_spec spec{};
        spec.size = sizeof spec;
        must(attnsmith_kernel_spec, kernel, &spec);
        CHECK(spec.op == ATTNSMITH_OP_MERGE);
        CHECK((spec.head_dim_vo == kDim && spec.q_heads == kHeads && spec.lse == lse));
        CHECK((spec.dtype == ATTNSMITH_DTYPE_BF16 && spec.alignment == 16));
        CHECK((spec.head_dim_qk == 0 && spec.kv_heads == 0 && spec.page_size == 0));
        CHECK((spec.scale == 0 && spec.softcap == 0));
        attnsmith_spec again{};
        again.size = sizeof again;
        must(attnsmith_kernel_spec, prepare(spec).get(), &again);  // it is a spec of the same kernel
        CHECK(std::memcmp(&spec, &again, sizeof spec) == 0);

        std::size_t bytes = 99;
        attnsmith_workspace_bounds bounds{sizeof bounds, kBatch, kTokens, kKeys};
        must(attnsmith_kernel_workspace_bytes, kernel, &bounds, &bytes);
        CHECK(bytes == 0);
        bounds.q_tokens = -1;
        CHECK(ask(attnsmith_kernel_workspace_bytes, kernel, &bounds, &bytes).refuses("q_tokens"));
    }
    char* text = nullptr;
    must(attnsmith_kernel_plan_json, lse_kernel(), &text);
    const TextHandle owned(text);
    const json plan = json::parse(text);
    CHECK(plan["schema"] == "attnsmith.plan/1");
    REQUIRE(plan["kernels"].size() == 1);
    CHECK(plan["kernels"][0]["cache"]["state"] != "miss");
    CHECK(plan["request"]["op"] == "merge");
}

TEST_CASE("Merges of 1, 2 and 32 states") {
    for (const std::size_t states : {std::size_t{1}, std::size_t{2}, kMostStates}) {
        for (const bool lse : {false, true}) {
            INFO(states << " states, lse " << lse);
            MergeOperands operands(states);
            const attnsmith_kernel* const kernel = lse ? lse_kernel() : merge_kernel();
            const abi::MergeArguments arguments = launched(bind_merge(kernel, operands.tensors(lse)).get());
            REQUIRE(arguments.states == static_cast<std::int32_t>(states));
            CHECK(arguments.rows == kTokens * kHeads);
            CHECK(arguments.heads == kHeads);
            CHECK(arguments.o == memory[2]);
            CHECK(static_cast<void*>(arguments.lse) == (lse ? memory[3] : nullptr));
            for (std::size_t i = 0; i < states; ++i) {
                const abi::MergeState& state = arguments.state[i];
                CHECK(state.o == memory[0] + i * kTokens * kHeads * kDim * 2);
                CHECK(static_cast<const void*>(state.lse) == memory[1] + i * kTokens * kHeads * 4);
                CHECK((state.o_token_stride == kHeads * kDim && state.o_head_stride == kDim));
                CHECK((state.lse_token_stride == kHeads && state.lse_head_stride == 1));
            }
            CHECK(try_merge(kernel, operands.tensors(lse)).code == ATTNSMITH_OK);
        }
    }
}

TEST_CASE("The views of a merge") {
    MergeOperands operands(2);
    operands.o_states[0].strides({kDim, kTokens * kDim, 1});  // heads first
    operands.lse_states[1].strides({3 * kHeads, 3}).byte_offset(4);
    const abi::MergeArguments arguments = launched(bind_merge(lse_kernel(), operands.tensors()).get());
    CHECK((arguments.state[0].o_token_stride == kDim && arguments.state[0].o_head_stride == kTokens * kDim));
    CHECK((arguments.state[1].lse_token_stride == 3 * kHeads && arguments.state[1].lse_head_stride == 3));
    CHECK(static_cast<const void*>(arguments.state[1].lse) == memory[1] + kTokens * kHeads * 4 + 4);

    MergeOperands none(2);
    for (DlTensor* o : {&none.o_states[0], &none.o_states[1], &none.o})
        *o = DlTensor(nullptr, {0, kHeads, kDim});
    for (DlTensor* lse : {&none.lse_states[0], &none.lse_states[1], &none.lse})
        *lse = DlTensor(nullptr, {0, kHeads}).dtype(ATTNSMITH_DL_FLOAT, 32);
    const CallHandle nothing = bind_merge(lse_kernel(), none.tensors());
    const int launches = fake_driver().launches;
    must(attnsmith_launch, nothing.get(), nullptr);
    CHECK(fake_driver().launches == launches);
}

TEST_CASE("A merge in place of a state") {
    MergeOperands operands(3);
    operands.o = operands.o_states[1];
    operands.lse = operands.lse_states[2];
    const abi::MergeArguments arguments = launched(bind_merge(lse_kernel(), operands.tensors()).get());
    CHECK(arguments.o == arguments.state[1].o);
    CHECK(arguments.lse == arguments.state[2].lse);
    MergeOperands o_alone(1);
    o_alone.o = o_alone.o_states[0];
    CHECK(try_merge(merge_kernel(), o_alone.tensors(false)).code == ATTNSMITH_OK);

    // All other sharing is refused.
    CHECK(with([](MergeOperands& m) { m.o = m.o_states[1], m.o.byte_offset(16); }).refuses("o"));
    CHECK(with([](MergeOperands& m) {
              m.o = m.o_states[1], m.o.strides({kDim, kTokens * kDim, 1});
          }).refuses("o"));
    CHECK(with([](MergeOperands& m) { m.lse = m.lse_states[0], m.lse.byte_offset(4); }).refuses("lse"));
    CHECK(with([](MergeOperands& m) {
              m.lse = DlTensor(memory[2], {kTokens, kHeads}).dtype(ATTNSMITH_DL_FLOAT, 32);
          }).refuses("lse"));
    CHECK(with([](MergeOperands& m) { m.o = {memory[1], {kTokens, kHeads, kDim}}; }).refuses("o"));
    CHECK(with([](MergeOperands& m) { m.o.strides({kDim, kDim, 1}); }).refuses("o.strides"));
}

TEST_CASE("More states than a merge takes") {
    MergeOperands operands(kMostStates + 1);
    const Answer answer = try_merge(lse_kernel(), operands.tensors());
    CHECK(answer.refuses("o_states"));
    CHECK(answer.details["value"] == "33 states");
    CHECK(answer.details.value("accepted", "").find("at most 32: merge in steps") == 0);
    attnsmith_merge_tensors tensors = operands.tensors();
    tensors.state_count = 0;
    CHECK(try_merge(lse_kernel(), tensors).refuses("o_states"));
    tensors.o_states = tensors.lse_states = nullptr;
    CHECK(try_merge(lse_kernel(), tensors).refuses("o_states"));
}

TEST_CASE("What is wrong with the tensors of a merge is named") {
    CHECK(with([](MergeOperands& m) {
              m.o_states[1].dtype(ATTNSMITH_DL_FLOAT, 16);
          }).refuses("o_states[1].dtype"));
    CHECK(with([](MergeOperands& m) {
              m.lse_states[0].dtype(ATTNSMITH_DL_BFLOAT, 16);
          }).refuses("lse_states[0].dtype"));
    CHECK(with([](MergeOperands& m) {
              m.lse_states[1].device(ATTNSMITH_DL_CUDA, 1);
          }).refuses("lse_states[1].device"));
    CHECK(with([](MergeOperands& m) { m.o.device(ATTNSMITH_DL_CUDA_MANAGED, 5); }).code == ATTNSMITH_OK);
    CHECK(with([](MergeOperands& m) {
              m.o_states[0] = {memory[0], {kTokens, kHeads * kDim}};
          }).refuses("o_states[0].ndim"));
    CHECK(with([](MergeOperands& m) {
              m.o_states[1] = {memory[0], {kTokens - 1, kHeads, kDim}};
          }).refuses("o_states[1].shape[0]"));
    CHECK(with([](MergeOperands& m) { m.o = {nullptr, {kTokens, kHeads, kDim}}; }).refuses("o.data"));
    CHECK(with([](MergeOperands& m) { m.o.byte_offset(8); }).refuses("o.data"));
    CHECK(with([](MergeOperands& m) {
              m.o_states[0].strides({kHeads * kDim, -kDim, 1});
          }).refuses("o_states[0].strides[1]"));

    MergeOperands operands(2);
    CHECK(try_merge(lse_kernel(), operands.tensors(false)).refuses("lse"));
    CHECK(try_merge(merge_kernel(), operands.tensors(true)).refuses("lse"));
    attnsmith_merge_tensors tensors = operands.tensors();
    tensors.o = nullptr;
    CHECK(try_merge(lse_kernel(), tensors).refuses("o"));
    const attnsmith_dl_tensor* const states[] = {operands.o_states[0].get(), nullptr};
    tensors = operands.tensors();
    tensors.o_states = states;
    CHECK(try_merge(lse_kernel(), tensors).refuses("o_states[1]"));
    tensors = operands.tensors();
    tensors.o_states = nullptr;
    CHECK(try_merge(lse_kernel(), tensors).refuses("o_states"));
    tensors = operands.tensors();
    tensors.lse_states = nullptr;
    CHECK(try_merge(lse_kernel(), tensors).refuses("lse_states"));
    CHECK(ask(attnsmith_bind_merge, lse_kernel(), &tensors, nullptr, nullptr, nullptr).refuses("call"));
}

TEST_CASE("A merge has no status and can be described") {
    MergeOperands operands(2);
    const CallHandle call = bind_merge(lse_kernel(), operands.tensors());
    std::uint32_t bits = 99;
    must(attnsmith_call_status, call.get(), nullptr, &bits);
    CHECK(bits == 0);
    must(attnsmith_call_clear_status, call.get(), nullptr);
    char* text = nullptr;
    must(attnsmith_call_describe, call.get(), &text);
    const TextHandle owned(text);
    CHECK(std::string(text).find("merge states bf16 64: 2 CTAs of") == 0);
}

TEST_CASE("A merge kernel of another device") {
    const KernelHandle other = prepare(merge_spec(1), 1);
    MergeOperands operands(2);
    CHECK(try_merge(other.get(), operands.tensors()).refuses("o_states[0].device"));
    for (std::deque<DlTensor>* const states : {&operands.o_states, &operands.lse_states}) {
        for (DlTensor& state : *states) state.device(ATTNSMITH_DL_CUDA, 1);
    }
    operands.o.device(ATTNSMITH_DL_CUDA, 1), operands.lse.device(ATTNSMITH_DL_CUDA, 1);
    CHECK(try_merge(other.get(), operands.tensors()).code == ATTNSMITH_OK);
}

TEST_CASE("A merge kernel binds no attention") {
    alignas(256) static unsigned char scratch[1024];
    const attnsmith_workspace workspace{sizeof workspace, scratch, sizeof scratch};
    Operands operands;
    const attnsmith_tensors tensors = operands.tensors();
    attnsmith_call* call = nullptr;
    const Answer answer = ask(attnsmith_bind, lse_kernel(), &tensors, nullptr, nullptr, &call);
    CHECK(answer.refuses("op"));
    CHECK(answer.details["value"] == "merge");
    CHECK(call == nullptr);
    CHECK(ask(attnsmith_run, lse_kernel(), &tensors, nullptr, &workspace, nullptr).refuses("op"));
}

TEST_CASE("Merging is not what an attention kernel does") {
    DlTensor o(memory[0], {4, kHeads, kDim}), lse(memory[1], {4, kHeads});
    lse.dtype(ATTNSMITH_DL_FLOAT, 32);
    const attnsmith_dl_tensor* const o_states[] = {o.get(), nullptr};
    const attnsmith_dl_tensor* const lse_states[] = {lse.get(), lse.get()};
    attnsmith_merge_tensors tensors{sizeof tensors, 1, o_states, lse_states, o.get(), lse.get()};
    attnsmith_call* call = nullptr;
    const auto both = [&](const std::string& field) {
        CHECK(ask(attnsmith_bind_merge, dense_kernel(), &tensors, nullptr, nullptr, &call).refuses(field));
        CHECK(ask(attnsmith_run_merge, dense_kernel(), &tensors, nullptr, nullptr, nullptr).refuses(field));
    };
    both("op");
    tensors.state_count = 2;
    both("o_states[1]");
    tensors.state_count = ~std::size_t{0};
    both("o_states");
    tensors.state_count = 1, tensors.lse_states = nullptr;
    both("lse_states");
    tensors.size = 40;
    both("tensors.size");
    CHECK(ask(attnsmith_bind_merge, dense_kernel(), nullptr, nullptr, nullptr, &call).refuses("tensors"));
    CHECK(ask(attnsmith_run_merge, nullptr, &tensors, nullptr, nullptr, nullptr).refuses("kernel"));
    CHECK(call == nullptr);
}
