// Op top_k through the C ABI with the stub of the CUDA driver.
#include "abi/top_k_arguments.h"
#include "c_api/device_session.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

constexpr std::int64_t kRows = 5, kColumns = 90, kSelected = 7;

const attnsmith_kernel* top_k_kernel() {
    static const KernelHandle kernel = [] {
        attnsmith_spec spec{};
        spec.size = sizeof spec;
        spec.op = ATTNSMITH_OP_TOP_K;
        return prepare(spec);
    }();
    return kernel.get();
}

struct TopKOperands {
    DlTensor scores{memory[0], {kRows, kColumns}}, ends{memory[1], {kRows}},
        indices{memory[2], {kRows, kSelected}};

    TopKOperands() {
        scores.dtype(ATTNSMITH_DL_FLOAT, 32);
        for (DlTensor* one : {&ends, &indices}) one->dtype(ATTNSMITH_DL_INT, 32);
    }
    attnsmith_top_k_tensors tensors() {
        return {sizeof(attnsmith_top_k_tensors), scores.get(), nullptr, ends.get(), indices.get()};
    }
};

Answer try_bind(const attnsmith_top_k_tensors* tensors, const attnsmith_batch* batch = nullptr) {
    attnsmith_call* call = nullptr;
    const Answer answer = ask(attnsmith_bind_top_k, top_k_kernel(), tensors, batch, nullptr, &call);
    attnsmith_call_free(call);
    return answer;
}

}  // namespace

TEST_CASE("Rows are selected through the C ABI") {
    TopKOperands operands;
    const attnsmith_top_k_tensors tensors = operands.tensors();
    attnsmith_call* raw = nullptr;
    must(attnsmith_bind_top_k, top_k_kernel(), &tensors, nullptr, nullptr, &raw);
    const CallHandle call(raw);
    const auto arguments = launched_with<abi::TopKArguments>(call.get());
    CHECK(arguments.scores == static_cast<const void*>(memory[0]));
    CHECK(arguments.row_starts == nullptr);
    CHECK(arguments.row_ends == memory[1]);
    CHECK(arguments.indices == static_cast<const void*>(memory[2]));
    CHECK(arguments.columns == kColumns);
    CHECK(arguments.k == kSelected);
    must(attnsmith_call_synchronize, call.get(), nullptr);

    const int launches = fake_driver().launches;
    CHECK(ask(attnsmith_run_top_k, top_k_kernel(), &tensors, nullptr, nullptr, nullptr).refuses("workspace"));
    attnsmith_workspace workspace{sizeof workspace, memory[3], ATTNSMITH_WORKSPACE_ZEROED_BYTES};
    must(attnsmith_run_top_k, top_k_kernel(), &tensors, nullptr, &workspace, nullptr);
    CHECK(fake_driver().launches == launches + 1);
}

TEST_CASE("What is no selection is refused through the C ABI") {
    TopKOperands operands;
    CHECK(try_bind(nullptr).refuses("tensors"));
    attnsmith_top_k_tensors tensors = operands.tensors();
    tensors.size = 32;
    CHECK(try_bind(&tensors).refuses("tensors.size"));
    tensors = operands.tensors();
    tensors.scores = nullptr;
    CHECK(try_bind(&tensors).refuses("scores"));
    tensors = operands.tensors();
    attnsmith_batch batch{};
    batch.size = sizeof batch;
    CHECK(try_bind(&tensors, &batch).code == ATTNSMITH_OK);
    batch.max_kv_len = 3;
    CHECK(try_bind(&tensors, &batch).refuses("batch.max_kv_len"));
    operands.indices.dtype(ATTNSMITH_DL_INT, 64);
    tensors = operands.tensors();
    CHECK(try_bind(&tensors).refuses("indices.dtype"));
    CHECK(ask(attnsmith_call_synchronize, nullptr, nullptr).refuses("call"));
}
