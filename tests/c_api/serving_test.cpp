// The C ABI with the stub of the CUDA driver: launches at other addresses, sets of kernels, what a graph
// keeps, and rows of a page table.
#include <algorithm>
#include <set>
#include <vector>

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
    must(attnsmith_call_launch_at, call.get(), &at, nullptr);
    abi::AttentionArguments arguments;
    std::memcpy(static_cast<void*>(&arguments), state.last_launch.parameter, sizeof arguments);
    state.param_bytes = 0;
    CHECK(arguments.q == static_cast<void*>(memory[0]));
    CHECK(arguments.k == memory[1] + 4096);
    CHECK(arguments.v == static_cast<void*>(memory[2]));
    CHECK(arguments.o == memory[3] + 8192);

    at = addresses();
    at.v = memory[2] + 2;
    CHECK(ask(attnsmith_call_launch_at, call.get(), &at, nullptr).refuses("addresses.v"));
    at = addresses();
    at.lse = reinterpret_cast<float*>(memory[2]);
    CHECK(ask(attnsmith_call_launch_at, call.get(), &at, nullptr).refuses("addresses.lse"));
    at = addresses();
    at.k_scale = reinterpret_cast<float*>(memory[2]);
    CHECK(ask(attnsmith_call_launch_at, call.get(), &at, nullptr).refuses("addresses.k_scale"));
    at = addresses();
    at.v_scale = reinterpret_cast<float*>(memory[2]);
    CHECK(ask(attnsmith_call_launch_at, call.get(), &at, nullptr).refuses("addresses.v_scale"));
    at.size = 8;
    CHECK(ask(attnsmith_call_launch_at, call.get(), &at, nullptr).refuses("addresses.size"));
    CHECK(ask(attnsmith_call_launch_at, call.get(), nullptr, nullptr).refuses("addresses"));
    CHECK(ask(attnsmith_call_launch_at, nullptr, &at, nullptr).refuses("call"));
}

TEST_CASE("An append's struct without all of its fields is refused by its size") {
    attnsmith_append_tensors tensors{};
    attnsmith_call* call = nullptr;
    for (const std::size_t size : {sizeof tensors - 8, sizeof tensors + 4, std::size_t{8}, std::size_t{0}}) {
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
    attnsmith_workspace_bounds bounds{sizeof bounds, kBatch, kBatch * kQueries, kKeys};
    must(attnsmith_kernel_set_workspace_bytes, set.get(), &bounds, &all);
    must(attnsmith_kernel_workspace_bytes, first, &bounds, &one);
    CHECK(all >= one);

    attnsmith_sizes wrong = kSizes;
    wrong.kv_len = -1;
    CHECK(ask(attnsmith_kernel_set_pick, set.get(), &wrong, &again).code == ATTNSMITH_CODE_INVALID_REQUEST);
    CHECK(ask(attnsmith_kernel_set_pick, nullptr, &kSizes, &again).refuses("set"));
    CHECK(ask(attnsmith_kernel_set_pick, set.get(), &kSizes, nullptr).refuses("kernel"));
    attnsmith_kernel_set* none = nullptr;
    CHECK(ask(attnsmith_prepare_set, nullptr, &spec, 0, &none).refuses("runtime"));
    CHECK(ask(attnsmith_prepare_set, runtime(), nullptr, 0, &none).refuses("spec"));
    CHECK(ask(attnsmith_prepare_set, runtime(), &spec, 0, nullptr).refuses("set"));
    bounds.batch = -1;
    CHECK(ask(attnsmith_kernel_set_workspace_bytes, set.get(), &bounds, &all).refuses("batch"));
    CHECK(ask(attnsmith_kernel_set_workspace_bytes, set.get(), nullptr, &all).refuses("bounds"));
}

TEST_CASE("A set has a spec, a device and each of its kernels once") {
    const attnsmith_spec spec = dense_spec();
    attnsmith_kernel_set* made = nullptr;
    must(attnsmith_prepare_set, runtime(), &spec, 1, &made);
    const SetHandle set(made);
    CHECK(attnsmith_kernel_set_device(set.get()) == 1);
    CHECK(attnsmith_kernel_set_device(nullptr) == -1);
    const std::size_t size = attnsmith_kernel_set_size(set.get());
    attnsmith_spec of_set{}, of_kernel{};
    of_set.size = of_kernel.size = sizeof of_set;
    must(attnsmith_kernel_set_spec, set.get(), &of_set);
    std::set<const attnsmith_kernel*> kernels;
    for (std::size_t i = 0; i < size; ++i) {
        kernels.insert(attnsmith_kernel_set_kernel(set.get(), i));
        must(attnsmith_kernel_spec, attnsmith_kernel_set_kernel(set.get(), i), &of_kernel);
        CHECK(std::memcmp(&of_kernel, &of_set, sizeof of_set) == 0);
    }
    CHECK((kernels.size() == size && !kernels.contains(nullptr)));
    CHECK(attnsmith_kernel_set_kernel(set.get(), size) == nullptr);
    CHECK(attnsmith_kernel_set_kernel(set.get(), ~std::size_t{0}) == nullptr);
    CHECK(attnsmith_kernel_set_kernel(nullptr, 0) == nullptr);
    const attnsmith_kernel* picked = nullptr;
    must(attnsmith_kernel_set_pick, set.get(), &kSizes, &picked);
    CHECK(kernels.contains(picked));
    CHECK(ask(attnsmith_kernel_set_spec, nullptr, &of_set).refuses("set"));
    CHECK(ask(attnsmith_kernel_set_spec, set.get(), nullptr).refuses("spec"));
    of_set.size = 8;
    CHECK(ask(attnsmith_kernel_set_spec, set.get(), &of_set).refuses("spec.size"));
}

TEST_CASE("A workspace is cleared in the order of a stream, and no more of it than has to be") {
    REQUIRE(attnsmith_workspace_zeroed_bytes() == ATTNSMITH_WORKSPACE_ZEROED_BYTES);
    attnsmith_buffer* made = nullptr;
    must(attnsmith_buffer_allocate, runtime(), 1, std::size_t{16384}, &made);
    const BufferHandle buffer(made);
    const std::vector<unsigned char> ones(16384, 1);
    must(attnsmith_buffer_upload, buffer.get(), ones.data(), ones.size(), std::size_t{0});
    attnsmith_workspace workspace{sizeof workspace, attnsmith_buffer_data(buffer.get()), 16384};
    must(attnsmith_workspace_clear, runtime(), &workspace, nullptr, 1);
    std::vector<unsigned char> found(16384);
    must(attnsmith_buffer_download, buffer.get(), found.data(), found.size(), std::size_t{0});
    CHECK(std::count(found.begin(), found.end(), 0) == ATTNSMITH_WORKSPACE_ZEROED_BYTES);
    CHECK(std::count(found.begin(), found.begin() + ATTNSMITH_WORKSPACE_ZEROED_BYTES, 0) ==
          ATTNSMITH_WORKSPACE_ZEROED_BYTES);

    const auto refused = [&](const attnsmith_workspace* given, std::int32_t device, const char* field) {
        return ask(attnsmith_workspace_clear, runtime(), given, nullptr, device).refuses(field);
    };
    CHECK(refused(&workspace, 9, "device"));
    CHECK(refused(nullptr, 1, "workspace"));
    workspace.bytes = ATTNSMITH_WORKSPACE_ZEROED_BYTES - 1;
    CHECK(refused(&workspace, 1, "workspace.bytes"));
    workspace = {sizeof workspace, nullptr, 16384};
    CHECK(refused(&workspace, 1, "workspace.data"));
    workspace.data = static_cast<char*>(attnsmith_buffer_data(buffer.get())) + 16;
    CHECK(refused(&workspace, 1, "workspace.data"));
    CHECK(ask(attnsmith_workspace_clear, nullptr, &workspace, nullptr, 1).refuses("runtime"));
}

// A struct of a header that has 16 bytes more than this one.
template <class Struct>
struct Later {
    Struct known{};
    std::uint64_t added[2] = {};

    Later() { known.size = sizeof *this; }
};

TEST_CASE("A struct of a later header is taken if what this library does not know is zero") {
    Operands operands;
    Later<attnsmith_tensors> tensors;
    tensors.known = operands.tensors(), tensors.known.size = sizeof tensors;
    attnsmith_call* call = nullptr;
    must(attnsmith_bind, dense_kernel(), &tensors.known, nullptr, nullptr, &call);
    attnsmith_call_free(call);
    for (const std::size_t place : {0, 1}) {
        tensors.added[place] = std::uint64_t{1} << 63;
        CHECK(ask(attnsmith_bind, dense_kernel(), &tensors.known, nullptr, nullptr, &call)
                  .refuses("tensors.size"));
        tensors.added[place] = 0;
    }
    tensors.known.size = 4096 + 8;
    CHECK(
        ask(attnsmith_bind, dense_kernel(), &tensors.known, nullptr, nullptr, &call).refuses("tensors.size"));
}

TEST_CASE("What this library does not know of a struct that it writes becomes zero") {
    Later<attnsmith_spec> spec;
    spec.added[0] = spec.added[1] = 77;
    must(attnsmith_kernel_spec, dense_kernel(), &spec.known);
    CHECK((spec.added[0] == 0 && spec.added[1] == 0));
    CHECK((spec.known.size == sizeof spec && spec.known.q_heads == kHeads));
    Later<attnsmith_sizes> sizes;
    sizes.added[1] = 77;
    must(attnsmith_parse_request, R"({"head_dim": 64, "q_heads": 8, "q_len": 5})", &spec.known, &sizes.known);
    CHECK((sizes.added[1] == 0 && sizes.known.q_len == 5 && sizes.known.size == sizeof sizes));
    must(attnsmith_kernel_spec, dense_kernel(), &spec.known);  // it is taken as it was given
    char* json = nullptr;
    must(attnsmith_request_json, &spec.known, &sizes.known, &json);
    attnsmith_string_free(json);
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
