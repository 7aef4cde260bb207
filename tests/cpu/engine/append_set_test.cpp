// What prewarm makes of a model's appends is what binding them asks for: nothing is compiled by then.
#include "abi/append_arguments.h"
#include "attnsmith/coverage.hpp"
#include "cache/fixture.hpp"
#include "engine/fake_runtime.hpp"
#include "problem/model_summary.hpp"

using namespace attnsmith;
using cache::testing::TemporaryDirectory;
using test::at;
using test::fake;

namespace {

RuntimeOptions options_in(const std::string& directory, const char* nvrtc, OnMiss on_miss) {
    RuntimeOptions options = test::fake_options();
    options.use_cache = true;
    options.cache_dirs = {directory};
    options.nvrtc_path = nvrtc;
    options.on_miss = on_miss;
    return options;
}

// Llama's, as a program that has its tensors asks for it.
AttentionSpec asked(Slots slots) {
    AttentionSpec spec{.op = Op::append, .dtype = DType::bf16, .head_dim_qk = 128, .q_heads = 32};
    spec.kv_heads = 8;
    spec.kv = KvStorage::paged, spec.page_size = 16;
    spec.slots = slots;
    spec.rope = Rope::half, spec.rotary_dim = 128;
    return spec;
}

}  // namespace

TEST_CASE("a model's prewarmed appends are bound without compiling", "[engine][append]") {
    fake() = {};
    const TemporaryDirectory directory;
    const Coverage coverage = model_coverage(test::read_file(test::kModels / "llama-3.1-8b.json"),
                                             R"({"slots": ["mapping", "table"]})");
    std::vector<AttentionSpec> appends;
    for (const ModelAttention& attention : coverage.attentions)
        if (attention.phase == "append") appends.push_back(attention.request.spec);
    REQUIRE(appends.size() == 2);
    REQUIRE(Runtime(options_in(directory.path().string(), ATTNSMITH_FAKE_NVRTC, OnMiss::compile))
                .prewarm(appends, std::array{90})
                .ok());

    Runtime serving(options_in(directory.path().string(), "/nowhere/libnvrtc.so", OnMiss::error));
    for (const Slots slots : {Slots::mapping, Slots::table})
        for (const PlanSizes& sizes : {PlanSizes{1, 1, 1}, PlanSizes{300, 7, 9000}, PlanSizes{1, 8192, 8192}})
            CHECK_NOTHROW(serving.prepare(asked(slots), sizes));
    AttentionSpec alone = asked(Slots::mapping);  // k and v without q: as many heads as there are of k
    alone.q_heads = 8;
    CHECK_NOTHROW(serving.prepare(alone, {}));
    fake().param_bytes = sizeof(abi::AppendArguments);
    CHECK_NOTHROW(serving.prepare(alone, {})
                      .bind(AppendTensors{.k = at(1, DType::bf16, {5, 8, 128}),
                                          .v = at(2, DType::bf16, {5, 8, 128}),
                                          .k_cache = at(3, DType::bf16, {9, 16, 8, 128}),
                                          .v_cache = at(4, DType::bf16, {9, 16, 8, 128}),
                                          .slot_mapping = at(5, DType::int64, {5}),
                                          .positions = at(6, DType::int64, {5}),
                                          .rope_table = at(7, DType::bf16, {500, 128})})
                      .launch());
    AttentionSpec other = asked(Slots::mapping);
    other.rope = Rope::interleaved;
    CHECK_THROWS_AS(serving.prepare(other, {}), KernelMissing);
}
