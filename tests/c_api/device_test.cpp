// The C ABI with the stub of the CUDA driver: prepare, bind, launch, run, and DLPack tensors of every kind.
#include "abi/attention_arguments.h"
#include "c_api/device_session.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

abi::AttentionArguments launched(const attnsmith_call* call) {
    return launched_with<abi::AttentionArguments>(call);
}

// Binding operands of which one thing was changed.
template <typename Change>
Answer with(Change change) {
    Operands operands;
    change(operands);
    return try_bind(dense_kernel(), operands);
}

// Pages of 16 tokens, heads first, for ragged queries, with all that a kernel may take beside.
attnsmith_spec paged_spec() {
    attnsmith_spec spec = dense_spec();
    spec.kv = ATTNSMITH_KV_PAGED;
    spec.page_size = 16;
    spec.page_order = ATTNSMITH_PAGE_ORDER_HND;
    spec.index_dtype = ATTNSMITH_DTYPE_INT64;
    spec.lse = spec.sink = 1;
    return spec;
}

// Operands of paged_spec(), each at a multiple of 256 bytes.
struct PagedOperands {
    static constexpr std::int64_t kTokens = 12, kPages = 8;

    unsigned char* const indices = memory[1] + (1 << 17);
    DlTensor q{memory[0], {kTokens, kHeads, kDim}}, o{memory[3], {kTokens, kHeads, kDim}};
    DlTensor k{memory[1], {kPages, kKvHeads, 16, kDim}}, v{memory[2], {kPages, kKvHeads, 16, kDim}};
    DlTensor lse{memory[3] + (1 << 17), {kTokens, kHeads}}, sinks{memory[0] + (1 << 17), {kHeads}};
    DlTensor q_indptr{indices, {kBatch + 1}}, page_indptr{indices + 512, {kBatch + 1}};
    DlTensor page_indices{indices + 1024, {kPages}}, last_page_len{indices + 1536, {kBatch}};

    PagedOperands() {
        lse.dtype(ATTNSMITH_DL_FLOAT, 32), sinks.dtype(ATTNSMITH_DL_FLOAT, 32);
        for (DlTensor* tensor : {&q_indptr, &page_indptr, &page_indices, &last_page_len})
            tensor->dtype(ATTNSMITH_DL_INT, 64);
    }

    attnsmith_tensors tensors() {
        attnsmith_tensors tensors{};
        tensors.size = sizeof tensors;
        tensors.q = q.get(), tensors.k = k.get(), tensors.v = v.get(), tensors.o = o.get();
        tensors.lse = lse.get(), tensors.sinks = sinks.get();
        return tensors;
    }

    attnsmith_batch batch() {
        attnsmith_batch batch{};
        batch.size = sizeof batch;
        batch.q_indptr = q_indptr.get(), batch.page_indptr = page_indptr.get();
        batch.page_indices = page_indices.get(), batch.last_page_len = last_page_len.get();
        batch.max_q_len = 8;
        return batch;
    }
};

// The answers of bind and of run, which have to be one. Neither allocates nor launches when it refuses.
Answer with_workspace(const attnsmith_kernel* kernel, const attnsmith_tensors& tensors,
                      const attnsmith_batch* batch, const attnsmith_workspace& workspace) {
    const fake_cuda_state& state = fake_driver();
    const int allocations = state.allocations, launches = state.launches;
    attnsmith_call* call = nullptr;
    const Answer bound = ask(attnsmith_bind, kernel, &tensors, batch, &workspace, &call);
    attnsmith_call_free(call);
    const Answer run = ask(attnsmith_run, kernel, &tensors, batch, &workspace, nullptr);
    CHECK(bound.details == run.details);
    CHECK((bound.code == ATTNSMITH_OK) == (call != nullptr));
    CHECK((run.code == ATTNSMITH_OK) == (state.launches != launches));
    CHECK(state.allocations == allocations);
    return run;
}

}  // namespace

TEST_CASE("A kernel tells what it is") {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    must(attnsmith_kernel_spec, dense_kernel(), &spec);
    CHECK(spec.size == sizeof spec);
    CHECK((spec.dtype == ATTNSMITH_DTYPE_BF16 && spec.index_dtype == ATTNSMITH_DTYPE_INT32 &&
           spec.alignment == 16));
    CHECK((spec.head_dim_vo == kDim && spec.scale == 0.125 && spec.kv_heads == kKvHeads));
    CHECK(attnsmith_kernel_device(dense_kernel()) == 0);

    char* text = nullptr;
    must(attnsmith_kernel_plan_json, dense_kernel(), &text);
    const TextHandle owned(text);
    const json plan = json::parse(text);
    CHECK(plan["schema"] == "attnsmith.plan/1");
    CHECK(plan["device"]["name"] == "Fake GPU");
    CHECK(plan["kernels"][0]["cache"]["state"] == "hit");

    spec.size = 8;
    CHECK(ask(attnsmith_kernel_spec, dense_kernel(), &spec).refuses("spec.size"));
    CHECK(ask(attnsmith_kernel_spec, dense_kernel(), nullptr).refuses("spec"));
    CHECK(ask(attnsmith_kernel_spec, nullptr, &spec).refuses("kernel"));
    CHECK(ask(attnsmith_kernel_plan_json, dense_kernel(), nullptr).refuses("json"));
}

TEST_CASE("Devices as JSON") {
    char* text = nullptr;
    must(attnsmith_devices_json, runtime(), &text);
    const TextHandle owned(text);
    const json devices = json::parse(text);
    REQUIRE(devices.size() == 2);
    CHECK((devices[1]["device"] == 1 && devices[1]["index"] == 1));
    CHECK(devices[1]["name"] == "Fake GPU");
    CHECK(devices[1]["sm"] == 90);
    CHECK(devices[1]["sm_count"] == 132);
    CHECK(devices[1]["memory_bytes"] == std::uint64_t{80} << 30);
}

TEST_CASE("The workspace's size, and arguments that have none") {
    std::size_t result = 1;
    const auto bytes = [&](std::int64_t batch, std::int64_t q_tokens, std::int64_t max_kv_len) {
        const attnsmith_workspace_bounds bounds{sizeof bounds, batch, q_tokens, max_kv_len};
        result = 1;
        Answer answer = ask(attnsmith_kernel_workspace_bytes, dense_kernel(), &bounds, &result);
        CHECK((answer.code == ATTNSMITH_OK) == (result != 1));
        return answer;
    };
    CHECK(bytes(kBatch, kBatch * kQueries, kKeys).code == ATTNSMITH_OK);
    CHECK(bytes(1, 1, 1).code == ATTNSMITH_OK);
    const std::size_t of_ones = result;
    CHECK(bytes(0, 0, 0).code == ATTNSMITH_OK);
    CHECK(result == of_ones);
    constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t bad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(), kHuge}) {
        CHECK(bytes(bad, 1, 1).refuses("batch"));
        CHECK(bytes(1, bad, 1).refuses("q_tokens"));
        CHECK(bytes(1, 1, bad).refuses("max_kv_len"));
    }
    // More CTAs than a grid has, or that many bytes.
    for (const std::int64_t tokens : {std::int64_t{1} << 30, std::int64_t{1} << 29}) {
        const Answer answer = bytes(std::int64_t{1} << 20, tokens, std::int64_t{1} << 30);
        CHECK((answer.code == ATTNSMITH_OK || answer.refuses("q_tokens")));
    }
    attnsmith_workspace_bounds bounds{sizeof bounds, 1, 1, 1};
    CHECK(ask(attnsmith_kernel_workspace_bytes, dense_kernel(), &bounds, nullptr).refuses("bytes"));
    CHECK(ask(attnsmith_kernel_workspace_bytes, dense_kernel(), nullptr, &result).refuses("bounds"));
    bounds.size = 24;
    CHECK(ask(attnsmith_kernel_workspace_bytes, dense_kernel(), &bounds, &result).refuses("bounds.size"));
}

TEST_CASE("A call with a workspace of its own") {
    fake_cuda_state& state = fake_driver();
    dense_kernel();
    const int allocations = state.allocations, frees = state.frees, launches = state.launches;
    Operands operands;
    {
        const CallHandle call = bind(dense_kernel(), operands.tensors());
        CHECK(state.allocations == allocations + 1);
        for (int i = 1; i <= 3; ++i) {
            must(attnsmith_launch, call.get(), nullptr);
            CHECK(state.launches == launches + i);
        }
        CHECK(state.allocations == allocations + 1);
        std::uint32_t bits = 99;
        must(attnsmith_call_status, call.get(), nullptr, &bits);
        CHECK(bits == 0);
        char* text = nullptr;
        must(attnsmith_call_describe, call.get(), &text);
        const TextHandle owned(text);
        CHECK(std::string(text).find("CTAs of") != std::string::npos);
        CHECK(ask(attnsmith_call_describe, call.get(), nullptr).refuses("text"));
        CHECK(ask(attnsmith_call_status, call.get(), nullptr, nullptr).refuses("bits"));
    }
    CHECK(state.frees == frees + 1);
    CHECK(ask(attnsmith_launch, nullptr, nullptr).refuses("call"));
    CHECK(ask(attnsmith_call_clear_status, nullptr, nullptr).refuses("call"));
    const attnsmith_tensors tensors = operands.tensors();
    CHECK(ask(attnsmith_bind, dense_kernel(), &tensors, nullptr, nullptr, nullptr).refuses("call"));
}

namespace {

// What the functions of the next case were asked.
struct Pool {
    int allocations = 0, frees = 0;
    std::size_t bytes = 0;
    bool empty = false;
};

void* pool_allocate(void* user, std::size_t bytes, std::int32_t device) {
    auto& pool = *static_cast<Pool*>(user);
    CHECK(device == 0);
    if (pool.empty) return nullptr;
    ++pool.allocations;
    pool.bytes = bytes;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}

void pool_free(void* user, void* memory, std::size_t bytes, std::int32_t device) {
    auto& pool = *static_cast<Pool*>(user);
    CHECK((device == 0 && bytes == pool.bytes));
    ++pool.frees;
    std::free(memory);
}

}  // namespace

TEST_CASE("Memory comes from the caller's functions, both or neither") {
    Pool pool;
    attnsmith_runtime_options options{};
    options.size = sizeof options;
    options.no_cache = 1;
    options.log_level = ATTNSMITH_LOG_OFF;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    options.allocate_memory = pool_allocate;
    options.memory_user = &pool;
    attnsmith_runtime* runtime = nullptr;
    CHECK(ask(attnsmith_runtime_create, &options, &runtime).refuses("options.release_memory"));
    options.release_memory = pool_free;
    must(attnsmith_runtime_create, &options, &runtime);
    const int allocations = fake_driver().allocations;
    attnsmith_buffer* buffer = nullptr;
    must(attnsmith_buffer_allocate, runtime, 0, std::size_t{1000}, &buffer);
    CHECK((pool.allocations == 1 && pool.bytes == 1000));
    pool.empty = true;
    attnsmith_buffer* none = nullptr;
    const Answer answer = ask(attnsmith_buffer_allocate, runtime, 0, std::size_t{4711}, &none);
    CHECK(answer.code == ATTNSMITH_CODE_DRIVER_ERROR);
    attnsmith_runtime_free(runtime);
    attnsmith_buffer_free(buffer);
    CHECK((pool.frees == 1 && fake_driver().allocations == allocations));
}

TEST_CASE("The status is the workspace's first word") {
    alignas(256) static unsigned char scratch[1 << 18];
    const attnsmith_workspace workspace{sizeof workspace, scratch, sizeof scratch};
    Operands operands;
    const CallHandle call = bind(dense_kernel(), operands.tensors(), nullptr, &workspace);
    const std::pair<std::uint32_t, std::uint32_t> cases[] = {
        {abi::kStatusQueryClamped, ATTNSMITH_STATUS_Q_LEN_CLAMPED},
        {abi::kStatusKeyClamped, ATTNSMITH_STATUS_KV_LEN_CLAMPED},
        {abi::kStatusPageOutOfRange, ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE},
        {abi::kStatusWorkspaceNotZeroed, ATTNSMITH_STATUS_WORKSPACE_NOT_ZEROED},
        {abi::kStatusQueryClamped | abi::kStatusPageOutOfRange,
         ATTNSMITH_STATUS_Q_LEN_CLAMPED | ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE}};
    for (const auto& [word, expected] : cases) {
        std::memcpy(scratch, &word, sizeof word);
        std::uint32_t bits = 0;
        must(attnsmith_call_status, call.get(), nullptr, &bits);
        CHECK(bits == expected);
    }
    static std::uint32_t copied = 99;
    must(attnsmith_call_copy_status, call.get(), &copied, nullptr);
    must(attnsmith_call_clear_status, call.get(), nullptr);
    CHECK(ask(attnsmith_call_copy_status, call.get(), nullptr, nullptr).refuses("word"));
    CHECK(ask(attnsmith_call_copy_status, nullptr, &copied, nullptr).refuses("call"));
    std::uint32_t bits = 99;
    must(attnsmith_call_status, call.get(), nullptr, &bits);
    CHECK(bits == 0);
    CHECK(copied == (ATTNSMITH_STATUS_Q_LEN_CLAMPED | ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE));
}

TEST_CASE("Run binds and launches, and allocates nothing") {
    alignas(256) static unsigned char scratch[1 << 16];
    fake_cuda_state& state = fake_driver();
    Operands operands;
    const attnsmith_tensors tensors = operands.tensors();
    attnsmith_workspace workspace{sizeof workspace, scratch, sizeof scratch};
    dense_kernel();
    const int allocations = state.allocations, launches = state.launches;
    must(attnsmith_run, dense_kernel(), &tensors, nullptr, &workspace, nullptr);
    CHECK(state.launches == launches + 1);
    CHECK(state.allocations == allocations);

    const auto refused = [&](const attnsmith_workspace* given) {
        return ask(attnsmith_run, dense_kernel(), &tensors, nullptr, given, nullptr).field();
    };
    CHECK(refused(nullptr) == "workspace");
    workspace.data = nullptr;
    CHECK(refused(&workspace) == "workspace.data");
    workspace.data = scratch + 16;
    CHECK(refused(&workspace) == "workspace.data");
    workspace = {sizeof workspace, scratch, 255};
    CHECK(refused(&workspace) == "workspace.bytes");
    workspace.size = sizeof workspace - 8;
    CHECK(refused(&workspace) == "workspace.size");
    CHECK(ask(attnsmith_run, nullptr, &tensors, nullptr, &workspace, nullptr).refuses("kernel"));
    CHECK(ask(attnsmith_run, dense_kernel(), nullptr, nullptr, &workspace, nullptr).refuses("tensors"));
    CHECK(state.launches == launches + 1);
    CHECK(state.allocations == allocations);
}

TEST_CASE("A workspace without memory, whatever its size") {
    Operands operands;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, ~std::size_t{0}}) {
        const attnsmith_workspace workspace{sizeof workspace, nullptr, bytes};
        const Answer answer = with_workspace(dense_kernel(), operands.tensors(), nullptr, workspace);
        CHECK(answer.refuses("workspace.data"));
        CHECK(answer.details["value"] == "NULL");
    }
}

TEST_CASE("A workspace is no tensor's memory") {
    const auto overlapped = [](const Answer& answer) {
        const std::string prefix = "memory that overlaps ";
        const std::string value = answer.details.value("value", "");
        return answer.refuses("workspace.data") && value.starts_with(prefix) ? value.substr(prefix.size())
                                                                             : "nothing";
    };
    Operands operands;
    const attnsmith_tensors tensors = operands.tensors();
    DlTensor lens(memory[1] + (1 << 17), {kBatch});
    attnsmith_batch batch{};
    batch.size = sizeof batch;
    batch.kv_lens = lens.dtype(ATTNSMITH_DL_INT, 32).get();
    std::size_t needed = 0;
    const attnsmith_workspace_bounds bounds{sizeof bounds, kBatch, kBatch * kQueries, kKeys};
    must(attnsmith_kernel_workspace_bytes, dense_kernel(), &bounds, &needed);
    REQUIRE(needed % 256 == 0);
    const auto dense = [&](unsigned char* data, std::size_t bytes) {
        return with_workspace(dense_kernel(), tensors, &batch, {sizeof(attnsmith_workspace), data, bytes});
    };
    const std::pair<const char*, unsigned char*> of_dense[] = {
        {"q", memory[0]}, {"k", memory[1]}, {"v", memory[2]}, {"o", memory[3]}};
    constexpr std::size_t kQBytes = kBatch * kQueries * kHeads * kDim * 2;
    constexpr std::size_t kKBytes = kBatch * kKeys * kKvHeads * kDim * 2;
    for (const auto& [name, data] : of_dense) {
        const std::size_t bytes = *name == 'k' || *name == 'v' ? kKBytes : kQBytes;
        CHECK(overlapped(dense(data, 1 << 16)) == name);
        CHECK(overlapped(dense(data + bytes - 256, 1 << 16)) == name);
        CHECK(dense(data + bytes, 1 << 16).code == ATTNSMITH_OK);
    }
    CHECK(overlapped(dense(memory[1] + (1 << 17), 1 << 16)) == "batch.kv_lens");
    CHECK(dense(memory[1] + (1 << 17) - needed, needed).code == ATTNSMITH_OK);
    CHECK(overlapped(dense(memory[1] + (1 << 17) - 256, needed)) == "batch.kv_lens");

    const KernelHandle kernel = prepare(paged_spec());
    PagedOperands paged;
    const attnsmith_tensors paged_tensors = paged.tensors();
    const attnsmith_batch paged_batch = paged.batch();
    const std::pair<const char*, const attnsmith_dl_tensor*> of_paged[] = {
        {"lse", paged_tensors.lse},
        {"sinks", paged_tensors.sinks},
        {"batch.q_indptr", paged_batch.q_indptr},
        {"batch.page_indptr", paged_batch.page_indptr},
        {"batch.page_indices", paged_batch.page_indices},
        {"batch.last_page_len", paged_batch.last_page_len}};
    for (const auto& [name, tensor] : of_paged) {
        const attnsmith_workspace workspace{sizeof workspace, tensor->data, 1 << 16};
        CHECK(overlapped(with_workspace(kernel.get(), paged_tensors, &paged_batch, workspace)) == name);
    }
}

TEST_CASE("Bounds below a dense extent need lengths") {
    Operands operands;
    DlTensor lens(memory[1] + (1 << 17), {kBatch});
    lens.dtype(ATTNSMITH_DL_INT, 32);
    struct Side {
        const char* field;
        std::int64_t attnsmith_batch::*bound;
        const attnsmith_dl_tensor* attnsmith_batch::*lengths;
        std::int64_t extent;
    };
    const Side sides[] = {
        {"batch.max_q_len", &attnsmith_batch::max_q_len, &attnsmith_batch::q_lens, kQueries},
        {"batch.max_kv_len", &attnsmith_batch::max_kv_len, &attnsmith_batch::kv_lens, kKeys}};
    for (const Side& side : sides) {
        attnsmith_batch batch{};
        batch.size = sizeof batch;
        for (const std::int64_t below : {std::int64_t{1}, side.extent - 1}) {
            batch.*side.bound = below;
            const Answer answer = try_bind(dense_kernel(), operands, &batch);
            CHECK(answer.refuses(side.field));
            const std::string accepted = answer.details.value("accepted", "");
            CHECK(accepted.starts_with("0 or " + std::to_string(side.extent)));
            batch.*side.lengths = lens.get();
            CHECK(try_bind(dense_kernel(), operands, &batch).code == ATTNSMITH_OK);
            batch.*side.lengths = nullptr;
        }
        for (const std::int64_t enough : {side.extent, side.extent + 1}) {
            batch.*side.bound = enough;
            CHECK(try_bind(dense_kernel(), operands, &batch).code == ATTNSMITH_OK);
        }
    }
    // Lengths of the other side do not count.
    attnsmith_batch batch{};
    batch.size = sizeof batch;
    batch.kv_lens = lens.get(), batch.max_q_len = 1;
    CHECK(try_bind(dense_kernel(), operands, &batch).refuses("batch.max_q_len"));
}

TEST_CASE("NULL strides are compact, byte offsets are added, strides are honoured") {
    Operands operands;
    const abi::AttentionArguments compact = launched(bind(dense_kernel(), operands.tensors()).get());
    CHECK(compact.q == memory[0]);
    CHECK(compact.q_head_stride == kDim);
    CHECK(compact.q_token_stride == kHeads * kDim);
    CHECK(compact.q_batch_stride == kQueries * kHeads * kDim);
    CHECK(compact.k_batch_stride == kKeys * kKvHeads * kDim);

    operands.q.byte_offset(1024);
    operands.k.strides({kDim, 2 * kKvHeads * kDim * kBatch, 2 * kDim * kBatch, 1});
    const abi::AttentionArguments moved = launched(bind(dense_kernel(), operands.tensors()).get());
    CHECK(moved.q == memory[0] + 1024);
    CHECK(moved.k_batch_stride == kDim);
    CHECK(moved.k_token_stride == 2 * kKvHeads * kDim * kBatch);
    CHECK(moved.k_head_stride == 2 * kDim * kBatch);
}

TEST_CASE("Tensors with no elements may have no memory") {
    fake_cuda_state& state = fake_driver();
    Operands none;
    none.q = none.o = DlTensor(nullptr, {0, kQueries, kHeads, kDim});
    none.k = none.v = DlTensor(nullptr, {0, kKeys, kKvHeads, kDim});
    const CallHandle nothing = bind(dense_kernel(), none.tensors());
    const int launches = state.launches;
    must(attnsmith_launch, nothing.get(), nullptr);
    CHECK(state.launches == launches);

    // Queries that see no key: they are there, and get their zeros.
    Operands no_keys;
    no_keys.k = no_keys.v = DlTensor(nullptr, {kBatch, 0, kKvHeads, kDim});
    const abi::AttentionArguments arguments = launched(bind(dense_kernel(), no_keys.tensors()).get());
    CHECK(arguments.k != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(arguments.k) % 256 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(arguments.k) < 4096);  // no memory: a use of it is seen

    CHECK(with([](Operands& o) {
              o.q = DlTensor(nullptr, {kBatch, kQueries, kHeads, kDim});
          }).refuses("q.data"));
    CHECK(with([](Operands& o) { o.k = DlTensor(nullptr, {}); }).refuses("k.data"));  // a scalar
}

TEST_CASE("Memory of other devices is refused, managed memory is not") {
    const Answer cpu = with([](Operands& o) { o.v.device(1, 0); });
    CHECK(cpu.refuses("v.device"));
    CHECK(cpu.details["value"] == "type 1, id 0");
    CHECK(with([](Operands& o) { o.o.device(ATTNSMITH_DL_CUDA, 1); }).refuses("o.device"));
    CHECK(with([](Operands& o) { o.q.device(ATTNSMITH_DL_CUDA, -1); }).refuses("q.device"));
    CHECK(with([](Operands& o) { o.q.device(ATTNSMITH_DL_CUDA_MANAGED, 0); }).code == ATTNSMITH_OK);
    CHECK(with([](Operands& o) { o.q.device(ATTNSMITH_DL_CUDA_MANAGED, 7); }).code == ATTNSMITH_OK);

    const KernelHandle other = prepare(dense_spec(), 1);
    CHECK(attnsmith_kernel_device(other.get()) == 1);
    Operands operands;
    CHECK(try_bind(other.get(), operands).refuses("q.device"));
    for (DlTensor* tensor : {&operands.q, &operands.k, &operands.v, &operands.o})
        tensor->device(ATTNSMITH_DL_CUDA, 1);
    CHECK(try_bind(other.get(), operands).code == ATTNSMITH_OK);
}

TEST_CASE("A kernel for outputs of fp32 takes these alone") {
    attnsmith_spec spec = dense_spec();
    spec.o_dtype = ATTNSMITH_DTYPE_FP32;
    const KernelHandle kernel = prepare(spec, 0);
    attnsmith_spec told{};
    told.size = sizeof told;
    must(attnsmith_kernel_spec, kernel.get(), &told);
    CHECK(told.o_dtype == ATTNSMITH_DTYPE_FP32);
    told.size = offsetof(attnsmith_spec, o_dtype);  // of an older header
    CHECK(ask(attnsmith_kernel_spec, kernel.get(), &told).refuses("spec.size"));
    Operands operands;
    CHECK(try_bind(kernel.get(), operands).refuses("o.dtype"));
    operands.o.dtype(ATTNSMITH_DL_FLOAT, 32);
    CHECK(try_bind(kernel.get(), operands).code == ATTNSMITH_OK);
    CHECK(try_bind(dense_kernel(), operands).refuses("o.dtype"));
}

TEST_CASE("Other dtypes are refused") {
    CHECK(with([](Operands& o) { o.q.dtype(ATTNSMITH_DL_FLOAT, 64); }).refuses("q.dtype"));
    CHECK(with([](Operands& o) { o.q.dtype(ATTNSMITH_DL_BFLOAT, 16, 2); }).refuses("q.dtype"));
    CHECK(with([](Operands& o) { o.q.dtype(ATTNSMITH_DL_BFLOAT, 16, 0); }).refuses("q.dtype"));
    CHECK(with([](Operands& o) { o.k.dtype(ATTNSMITH_DL_UINT, 32); }).refuses("k.dtype"));
    // Known, but not what the spec says that keys are.
    for (const std::uint8_t code : {ATTNSMITH_DL_E4M3FN, ATTNSMITH_DL_E5M2, ATTNSMITH_DL_UINT}) {
        const Answer fp8 = with([&](Operands& o) { o.k.dtype(code, 8); });
        CHECK(fp8.refuses("k.dtype"));
        CHECK(fp8.details["accepted"] == "bf16");
    }
    const Answer other = with([](Operands& o) { o.v.dtype(ATTNSMITH_DL_FLOAT, 16); });
    CHECK(other.refuses("v.dtype"));
    CHECK(other.details["accepted"] == "bf16");
}

TEST_CASE("Shapes that lie are refused") {
    CHECK(with([](Operands& o) { o.q = {memory[0], {-1, kQueries, kHeads, kDim}}; }).refuses("q.shape[0]"));
    CHECK(with([](Operands& o) { o.q = {memory[0], {kBatch, kQueries, kHeads}}; }).refuses("q.ndim"));
    CHECK(with([](Operands& o) { o.q = {memory[0], {1, 1, 1, 1, 1, 1}}; }).refuses("q.ndim"));
    CHECK(with([](Operands& o) { o.k = {memory[1], {kBatch, kKeys, 3, kDim}}; }).refuses("k.shape[2]"));
    CHECK(with([](Operands& o) {
              o.v = {memory[2], {kBatch, kKeys + 1, kKvHeads, kDim}};
          }).refuses("v.shape[1]"));
    constexpr std::int64_t kHuge = std::int64_t{1} << 62;
    CHECK(with([](Operands& o) { o.k = {memory[1], {kHuge, kHuge, kKvHeads, kDim}}; }).refuses("k.shape[1]"));
    CHECK(with([](Operands& o) {
              o.k = {memory[1], {kBatch, kHuge, kKvHeads, kDim}};
              o.k.strides({kDim, kDim, kDim, 1});
          }).refuses("k.shape[1]"));

    Operands operands;
    attnsmith_dl_tensor q = *operands.q.get();
    attnsmith_tensors tensors = operands.tensors();
    tensors.q = &q;
    attnsmith_call* call = nullptr;
    q.shape = nullptr;
    CHECK(ask(attnsmith_bind, dense_kernel(), &tensors, nullptr, nullptr, &call).refuses("q.shape"));
    q.ndim = -1;
    CHECK(ask(attnsmith_bind, dense_kernel(), &tensors, nullptr, nullptr, &call).refuses("q.ndim"));
    q.ndim = 6;
    CHECK(ask(attnsmith_bind, dense_kernel(), &tensors, nullptr, nullptr, &call).refuses("q.ndim"));
    CHECK(call == nullptr);
}

TEST_CASE("Strides and offsets that lie are refused") {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    const auto q_strides = [](std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t last) {
        return with([&](Operands& o) { o.q.strides({batch, token, head, last}); });
    };
    CHECK(q_strides(kMost - 7, 256, 64, 1).refuses("q.strides[0]"));
    CHECK(q_strides(std::int64_t{1} << 62, 256, 64, 1).refuses("q.strides[0]"));
    CHECK(q_strides(2048, -256, 64, 1).refuses("q.strides[1]"));
    CHECK(q_strides(2048, std::numeric_limits<std::int64_t>::min(), 64, 1).refuses("q.strides[1]"));
    CHECK(q_strides(2048, 256, 65, 1).refuses("q.strides[2]"));  // breaks the alignment
    CHECK(q_strides(2048, 256, 64, 2).refuses("q.strides[3]"));
    CHECK(with([](Operands& o) { o.o.strides({2048, 256, 0, 1}); }).refuses("o.strides[2]"));
    CHECK(with([](Operands& o) { o.o.strides({64, 64, 64, 1}); }).refuses("o.strides"));
    CHECK(with([](Operands& o) { o.q.byte_offset(2); }).refuses("q.data"));
    CHECK(with([](Operands& o) { o.q.byte_offset(~std::uint64_t{0}); }).refuses("q.byte_offset"));
    CHECK(with([](Operands& o) { o.o = {memory[0], {kBatch, kQueries, kHeads, kDim}}; }).refuses("o"));
}

TEST_CASE("Tensors and batches that are absent or beside the point") {
    Operands operands;
    attnsmith_tensors tensors = operands.tensors();
    attnsmith_call* call = nullptr;
    const auto answer = [&](const attnsmith_batch* batch = nullptr) {
        return ask(attnsmith_bind, dense_kernel(), &tensors, batch, nullptr, &call);
    };
    tensors.k = nullptr;
    CHECK(answer().refuses("k"));
    tensors = operands.tensors();
    DlTensor lse(memory[1], {kBatch, kQueries, kHeads});
    tensors.lse = lse.dtype(ATTNSMITH_DL_FLOAT, 32).get();
    CHECK(answer().refuses("lse"));
    for (const auto scale : {&attnsmith_tensors::k_scale, &attnsmith_tensors::v_scale}) {
        tensors = operands.tensors();
        DlTensor one(memory[1], {1});
        tensors.*scale = one.dtype(ATTNSMITH_DL_FLOAT, 32).get();
        const Answer beside = answer();
        CHECK(beside.refuses(scale == &attnsmith_tensors::k_scale ? "k_scale" : "v_scale"));
        tensors.size = offsetof(attnsmith_tensors, k_scale);  // of an older header, which is read no further
        CHECK(answer().code == ATTNSMITH_OK);
        attnsmith_call_free(call);
        call = nullptr;
    }
    tensors = operands.tensors();
    tensors.size += 1;
    CHECK(answer().refuses("tensors.size"));
    tensors = operands.tensors();

    DlTensor lens(memory[1] + (1 << 17), {kBatch});
    attnsmith_batch batch{};
    batch.size = sizeof batch;
    CHECK(ask(attnsmith_bind, dense_kernel(), nullptr, &batch, nullptr, &call).refuses("tensors"));
    batch.kv_lens = lens.dtype(ATTNSMITH_DL_INT, 64).get();
    CHECK(answer(&batch).refuses("batch.kv_lens.dtype"));
    batch.kv_lens = lens.dtype(ATTNSMITH_DL_INT, 32).device(1, 0).get();
    CHECK(answer(&batch).refuses("batch.kv_lens.device"));
    batch.kv_lens = nullptr, batch.max_q_len = -1;
    CHECK(answer(&batch).refuses("batch.max_q_len"));
    batch.max_q_len = 0, batch.size = 80;
    CHECK(answer(&batch).refuses("batch.size"));
    batch.size = sizeof batch;
    batch.page_table = lens.device(ATTNSMITH_DL_CUDA, 0).get();
    CHECK(answer(&batch).refuses("batch.page_table"));
    batch.page_table = nullptr, batch.kv_lens = lens.get(), batch.max_kv_len = 16;
    CHECK(answer(&batch).code == ATTNSMITH_OK);
    CHECK(call != nullptr);
    attnsmith_call_free(call);
}

TEST_CASE("Paged KV, ragged queries, log-sum-exp and sinks") {
    const KernelHandle kernel = prepare(paged_spec());
    PagedOperands operands;
    const attnsmith_tensors tensors = operands.tensors();
    const attnsmith_batch batch = operands.batch();
    const abi::AttentionArguments arguments = launched(bind(kernel.get(), tensors, &batch).get());
    CHECK(arguments.q_indptr == operands.indices);
    CHECK(arguments.page_ids == operands.indices + 1024);
    CHECK(arguments.lse_token_stride == kHeads);
    CHECK(arguments.k_head_stride == 16 * kDim);
    CHECK(arguments.k_token_stride == kDim);
}

TEST_CASE("Preparing in the background") {
    attnsmith_spec spec = dense_spec();
    attnsmith_pending* made = nullptr;
    must(attnsmith_prepare_async, runtime(), &spec, &kSizes, ATTNSMITH_CURRENT_DEVICE, &made);
    const PendingHandle pending(made);
    for (int i = 0; i < 2; ++i) {
        attnsmith_kernel* kernel = nullptr;
        must(attnsmith_pending_kernel, pending.get(), &kernel);
        const KernelHandle owned(kernel);
        CHECK(attnsmith_kernel_device(kernel) == 0);
        CHECK(attnsmith_pending_ready(pending.get()) == 1);
    }
    CHECK(ask(attnsmith_pending_kernel, pending.get(), nullptr).refuses("kernel"));

    spec.consistency = ATTNSMITH_CONSISTENCY_BITWISE;  // with precision high no kernel serves it
    spec.precision = ATTNSMITH_PRECISION_HIGH;
    attnsmith_kernel* kernel = nullptr;
    const Answer now = ask(attnsmith_prepare, runtime(), &spec, &kSizes, 0, &kernel);
    CHECK(now.code == ATTNSMITH_CODE_UNSUPPORTED);
    CHECK(now.details["refusals"].size() > 0);
    must(attnsmith_prepare_async, runtime(), &spec, &kSizes, 0, &made);
    const PendingHandle failing(made);
    for (int i = 0; i < 2; ++i) CHECK(ask(attnsmith_pending_kernel, made, &kernel).details == now.details);
    CHECK(kernel == nullptr);

    made = nullptr;
    CHECK(ask(attnsmith_prepare_async, runtime(), &spec, &kSizes, 2, &made).refuses("device"));
    CHECK(ask(attnsmith_prepare, runtime(), &spec, &kSizes, -2, &kernel).refuses("device"));
    spec.dtype = 9;
    CHECK(ask(attnsmith_prepare_async, runtime(), &spec, &kSizes, 0, &made).refuses("spec.dtype"));
    CHECK(made == nullptr);
}

TEST_CASE("Buffers") {
    attnsmith_buffer* made = nullptr;
    must(attnsmith_buffer_allocate, runtime(), 1, std::size_t{64}, &made);
    const BufferHandle buffer(made);
    REQUIRE(attnsmith_buffer_data(made) != nullptr);
    CHECK(attnsmith_buffer_bytes(made) == 64);
    const char text[] = "fifteen letters";
    char back[sizeof text] = {};
    must(attnsmith_buffer_upload, made, text, sizeof text, std::size_t{48});
    must(attnsmith_buffer_download, made, back, sizeof back, std::size_t{48});
    CHECK(std::string(back) == text);
    must(attnsmith_buffer_upload, made, nullptr, std::size_t{0}, std::size_t{64});
    CHECK(ask(attnsmith_buffer_upload, made, text, sizeof text, std::size_t{49}).refuses("bytes"));
    CHECK(ask(attnsmith_buffer_upload, made, text, sizeof text, ~std::size_t{0}).refuses("bytes"));
    CHECK(ask(attnsmith_buffer_download, made, back, ~std::size_t{0}, std::size_t{1}).refuses("bytes"));
    CHECK(ask(attnsmith_buffer_upload, made, nullptr, std::size_t{1}, std::size_t{0}).refuses("host"));
    CHECK(ask(attnsmith_buffer_download, made, nullptr, std::size_t{1}, std::size_t{0}).refuses("host"));
    CHECK(ask(attnsmith_buffer_upload, nullptr, text, sizeof text, std::size_t{0}).refuses("buffer"));
    attnsmith_buffer* none = nullptr;
    CHECK(ask(attnsmith_buffer_allocate, runtime(), 2, std::size_t{64}, &none).refuses("device"));
    must(attnsmith_buffer_allocate, runtime(), 0, std::size_t{0}, &none);
    const BufferHandle empty(none);
    CHECK(attnsmith_buffer_data(none) == nullptr);
    must(attnsmith_synchronize, runtime(), nullptr);
}

TEST_CASE("What the driver refuses is told with its code") {
    fake_cuda_state& state = fake_driver();
    Operands operands;
    const CallHandle call = bind(dense_kernel(), operands.tensors());
    state.fail_launch = 719;
    const Answer launch = ask(attnsmith_launch, call.get(), nullptr);
    state.fail_launch = 0;
    CHECK(launch.code == ATTNSMITH_CODE_DRIVER_ERROR);
    CHECK(launch.details["code"] == "driver_error");
    CHECK(launch.details["driver_code"] == 719);
    CHECK(launch.details["call"] == "cuLaunchKernelEx");
    CHECK(launch.details["meaning"].get<std::string>().find("LAUNCH_FAILED") != std::string::npos);
    state.fail_alloc = 2;
    const Answer allocation = try_bind(dense_kernel(), operands);
    state.fail_alloc = 0;
    CHECK(allocation.details["driver_code"] == 2);
}

TEST_CASE("Calls outlive what they were made of") {
    const TemporaryFolder folder;
    attnsmith_runtime* own = open_runtime(folder);
    const attnsmith_spec spec = dense_spec();
    attnsmith_kernel* kernel = nullptr;
    must(attnsmith_prepare, own, &spec, &kSizes, 0, &kernel);
    Operands operands;
    const CallHandle call = bind(kernel, operands.tensors());
    attnsmith_kernel_free(kernel);
    attnsmith_runtime_free(own);
    must(attnsmith_launch, call.get(), nullptr);
}
