// The C ABI with the stub of the CUDA driver: launches at other addresses, sets of kernels, what a graph
// keeps, and rows of a page table.
#include "abi/attention_arguments.h"
#include "c_api/device_session.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

SetHandle prepared_set(const attnsmith_spec& spec) {
    attnsmith_kernel_set* set = nullptr;
    must(attnsmith_prepare_set, runtime(), &spec, 0, &set);
    return SetHandle(set);
}

attnsmith_tensor_addresses addresses() {
    attnsmith_tensor_addresses at{};
    at.size = sizeof at;
    return at;
}

}  // namespace

TEST_CASE("A launch at other addresses") {
    Operands operands;
    const CallHandle call = bind(dense_kernel(), operands.tensors());
    attnsmith_tensor_addresses at = addresses();
    at.k = memory[1] + 4096, at.o = memory[3] + 8192;
    fake_cuda_state& state = fake_driver();
    state.param_bytes = sizeof(abi::AttentionArguments);
    must(attnsmith_launch_at, call.get(), &at, nullptr);
    abi::AttentionArguments arguments;
    std::memcpy(static_cast<void*>(&arguments), state.last_launch.parameter, sizeof arguments);
    state.param_bytes = 0;
    CHECK(arguments.q == static_cast<void*>(memory[0]));
    CHECK(arguments.k == memory[1] + 4096);
    CHECK(arguments.v == static_cast<void*>(memory[2]));
    CHECK(arguments.o == memory[3] + 8192);

    at = addresses();
    at.v = memory[2] + 2;
    CHECK(ask(attnsmith_launch_at, call.get(), &at, nullptr).refuses("addresses.v"));
    at = addresses();
    at.lse = reinterpret_cast<float*>(memory[2]);
    CHECK(ask(attnsmith_launch_at, call.get(), &at, nullptr).refuses("addresses.lse"));
    at = addresses();
    at.k_scale = reinterpret_cast<float*>(memory[2]);
    CHECK(ask(attnsmith_launch_at, call.get(), &at, nullptr).refuses("addresses.k_scale"));
    at = addresses();
    at.v_scale = reinterpret_cast<float*>(memory[2]);
    CHECK(ask(attnsmith_launch_at, call.get(), &at, nullptr).refuses("addresses.v_scale"));
    at.size = 8;
    CHECK(ask(attnsmith_launch_at, call.get(), &at, nullptr).refuses("addresses.size"));
    CHECK(ask(attnsmith_launch_at, call.get(), nullptr, nullptr).refuses("addresses"));
    CHECK(ask(attnsmith_launch_at, nullptr, &at, nullptr).refuses("call"));
}

TEST_CASE("An append's struct without all of its fields is refused by its size") {
    attnsmith_append_tensors tensors{};
    attnsmith_call* call = nullptr;
    for (const std::size_t size : {sizeof tensors - 8, sizeof tensors + 8, std::size_t{8}, std::size_t{0}}) {
        tensors.size = size;
        CHECK(ask(attnsmith_bind_append, dense_kernel(), &tensors, nullptr, nullptr, &call)
                  .refuses("tensors.size"));
        CHECK(call == nullptr);
    }
}

TEST_CASE("What is kept of a call holds its workspace and its code") {
    Operands operands;
    CallHandle call = bind(dense_kernel(), operands.tensors());
    attnsmith_kept* kept = nullptr;
    must(attnsmith_call_keep_alive, call.get(), &kept);
    const fake_cuda_state& state = fake_driver();
    const int frees = state.frees;
    call.reset();
    CHECK(state.frees == frees);
    attnsmith_kept_free(kept);
    CHECK(state.frees == frees + 1);
    attnsmith_kept_free(nullptr);
    CHECK(ask(attnsmith_call_keep_alive, nullptr, &kept).refuses("call"));
    call = bind(dense_kernel(), operands.tensors());
    CHECK(ask(attnsmith_call_keep_alive, call.get(), nullptr).refuses("kept"));
}

TEST_CASE("A set of kernels") {
    const attnsmith_spec spec = dense_spec();
    const SetHandle set = prepared_set(spec);
    CHECK(attnsmith_kernel_set_size(set.get()) > 1);
    CHECK(attnsmith_kernel_set_size(nullptr) == 0);
    const attnsmith_kernel *first = nullptr, *again = nullptr;
    must(attnsmith_kernel_set_pick, set.get(), &kSizes, &first);
    must(attnsmith_kernel_set_pick, set.get(), &kSizes, &again);
    CHECK(first == again);
    must(attnsmith_kernel_set_pick, set.get(), nullptr, &again);
    Operands operands;
    const CallHandle call = bind(first, operands.tensors());
    must(attnsmith_launch, call.get(), nullptr);

    std::size_t all = 0, one = 0;
    must(attnsmith_kernel_set_workspace_bytes, set.get(), kBatch, kBatch * kQueries, kKeys, &all);
    must(attnsmith_workspace_bytes, first, kBatch, kBatch * kQueries, kKeys, &one);
    CHECK(all >= one);

    attnsmith_sizes wrong = kSizes;
    wrong.kv_len = -1;
    CHECK(ask(attnsmith_kernel_set_pick, set.get(), &wrong, &again).code == ATTNSMITH_INVALID_REQUEST);
    CHECK(ask(attnsmith_kernel_set_pick, nullptr, &kSizes, &again).refuses("set"));
    CHECK(ask(attnsmith_kernel_set_pick, set.get(), &kSizes, nullptr).refuses("kernel"));
    attnsmith_kernel_set* none = nullptr;
    CHECK(ask(attnsmith_prepare_set, nullptr, &spec, 0, &none).refuses("runtime"));
    CHECK(ask(attnsmith_prepare_set, runtime(), nullptr, 0, &none).refuses("spec"));
    CHECK(ask(attnsmith_prepare_set, runtime(), &spec, 0, nullptr).refuses("set"));
    CHECK(ask(attnsmith_kernel_set_workspace_bytes, set.get(), -1, 1, 1, &all).refuses("batch"));
}

TEST_CASE("Rows of a page table, and a batch of a header without them") {
    attnsmith_spec spec = dense_spec();
    spec.kv = ATTNSMITH_KV_PAGED;
    spec.page_size = 16;
    attnsmith_kernel* made = nullptr;
    must(attnsmith_prepare, runtime(), &spec, &kSizes, 0, &made);
    const KernelHandle kernel(made);
    unsigned char* const indices = memory[1] + (1 << 17);
    DlTensor q(memory[0], {kBatch, 1, kHeads, kDim}), o(memory[3], {kBatch, 1, kHeads, kDim});
    DlTensor k(memory[1], {8, 16, kKvHeads, kDim}), v(memory[2], {8, 16, kKvHeads, kDim});
    DlTensor table(indices, {5, 4}), rows(indices + 512, {kBatch}), lens(indices + 1024, {kBatch});
    for (DlTensor* tensor : {&table, &rows, &lens}) tensor->dtype(ATTNSMITH_DL_INT, 32);
    attnsmith_tensors tensors{};
    tensors.size = sizeof tensors;
    tensors.q = q.get(), tensors.k = k.get(), tensors.v = v.get(), tensors.o = o.get();
    attnsmith_batch batch{};
    batch.size = sizeof batch;
    batch.page_table = table.get(), batch.kv_lens = lens.get(), batch.table_rows = rows.get();
    const auto arguments = launched_with<abi::AttentionArguments>(bind(kernel.get(), tensors, &batch).get());
    CHECK(arguments.table_rows == indices + 512);
    CHECK(arguments.page_rows == 5);

    attnsmith_call* call = nullptr;
    batch.size = 88;  // without the field
    CHECK(ask(attnsmith_bind, kernel.get(), &tensors, &batch, nullptr, &call)
              .refuses("batch.page_table.shape[0]"));
}
