// The key of a kernel: all that decides its machine code, and nothing else.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "compiler/embedded.hpp"
#include "compiler/environment.hpp"
#include "cubins/cubins.hpp"
#include "families/family.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;

namespace {

engine::Cubins cubins_without_cache() {
    const engine::Settings settings = engine::settle({.use_cache = false});
    return {settings, std::make_shared<const engine::Log>(LogLevel::off, settings.log)};
}

std::vector<families::KernelConfig> kernels(const AttentionSpec& spec, int sm) {
    return planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning()).kernels();
}

}  // namespace

TEST_CASE("different kernels have different keys, equal ones the same", "[engine]") {
    const auto cubins = cubins_without_cache();
    std::set<families::KernelConfig> configs;
    std::set<std::string> keys;
    for (int sm : {80, 86, 89, 90, 120}) {
        for (DType dtype : {DType::fp16, DType::bf16}) {
            for (std::int64_t dim : {64, 72, 128, 256}) {
                for (bool paged : {false, true}) {
                    AttentionSpec spec{.dtype = dtype, .head_dim_qk = dim, .q_heads = 4};
                    if (paged) spec.kv = KvStorage::paged, spec.page_size = 16;
                    for (const auto& kernel : kernels(spec, sm)) {
                        configs.insert(kernel);
                        keys.insert(cubins.source_of(kernel).key.hex());
                        REQUIRE(cubins.source_of(kernel).key == cubins.source_of(kernel).key);
                    }
                }
            }
        }
    }
    REQUIRE(keys.size() == configs.size());
}

TEST_CASE("kernels of other features have other keys", "[engine]") {
    const auto cubins = cubins_without_cache();
    AttentionSpec base{.head_dim_qk = 64, .q_heads = 4};
    std::vector<std::pair<std::string, AttentionSpec>> variants = {{"none", base}};
    const auto add = [&](const char* name, auto change) {
        AttentionSpec spec = base;
        change(spec);
        variants.emplace_back(name, spec);
    };
    add("alibi", [](AttentionSpec& spec) { spec.alibi = true; });
    add("softcap", [](AttentionSpec& spec) { spec.softcap = 30.0; });
    add("alibi and softcap", [](AttentionSpec& spec) { spec.alibi = true, spec.softcap = 30.0; });
    add("o_dtype", [](AttentionSpec& spec) { spec.o_dtype = DType::fp32; });
    add("alignment", [](AttentionSpec& spec) { spec.alignment = 8; });
    add("index dtype",
        [](AttentionSpec& spec) { spec.kv = KvStorage::ragged, spec.index_dtype = DType::int64; });
    const auto attentions = [&](const AttentionSpec& spec, int sm) {
        std::map<families::KernelConfig, std::string> keys;
        for (const auto& kernel : kernels(spec, sm)) {
            if (kernel.family->role() == families::Role::attention)
                keys.emplace(kernel, cubins.source_of(kernel).key.hex());
        }
        REQUIRE(!keys.empty());
        return keys;
    };
    for (const int sm : {80, 90}) {
        // Features are of the machine code: no two of these have a kernel of attention in common.
        std::set<std::string> different;
        for (const auto& [name, spec] : variants) {
            for (const auto& [kernel, key] : attentions(spec, sm)) {
                INFO(name << ", " << kernel.name());
                CHECK(different.insert(key).second);
            }
        }
    }
}

TEST_CASE("a key covers every option of the compile, in order", "[engine]") {
    const auto cubins = cubins_without_cache();
    for (const auto& kernel : kernels({.head_dim_qk = 64, .q_heads = 1}, 90)) {
        const auto source = cubins.source_of(kernel);
        REQUIRE(source.unit.program.options.size() > 1);
        const auto fields = cache::parse_fields(source.fields_json);
        REQUIRE(fields);
        std::vector<std::string> options;
        std::size_t headers = 0;
        for (const cache::HashedField& field : *fields) {
            if (field.label == "option") options.push_back(field.value);
            if (field.label.starts_with("header ")) ++headers;
        }
        CHECK(options == source.unit.program.options);
        CHECK(headers == source.unit.program.headers.size());
        // The key is the digest of what the entry will say of it.
        CHECK(cache::digest_of(std::span<const cache::HashedField>(*fields)) == source.key);
    }
}

TEST_CASE("a key covers every header that the source can reach", "[engine]") {
    const auto cubins = cubins_without_cache();
    const auto source = cubins.source_of(kernels({.head_dim_qk = 64, .q_heads = 1}, 89).front());
    for (const char* header :
         {"attention/mma/kernel.cuh", "attention/tiles.cuh", "attention/mask.cuh",
          "abi/attention_arguments.h", "abi/integers.h", "common/copy.cuh", "common/math.cuh"}) {
        CHECK(source.fields_json.find(header) != std::string::npos);
    }
    CHECK(source.fields_json.find("attention/merge/") == std::string::npos);
}

TEST_CASE("a wgmma kernel's key covers what only it includes", "[engine][wgmma]") {
    const auto cubins = cubins_without_cache();
    const auto set = kernels({.head_dim_qk = 64, .q_heads = 1}, 90);
    const auto family = [&](families::Backend wanted) {
        const auto found = std::ranges::find(set, wanted, &families::KernelConfig::backend);
        REQUIRE(found != set.end());
        return cubins.source_of(*found).fields_json;
    };
    const std::string wgmma = family(families::Backend::wgmma);
    const std::string mma = family(families::Backend::mma);
    for (const char* header : {"attention/wgmma/kernel.cuh", "abi/attention_persistent.h", "common/wgmma.cuh",
                               "common/tma.cuh", "common/barrier.cuh"}) {
        CAPTURE(header);
        CHECK(wgmma.find(header) != std::string::npos);
        CHECK(mma.find(header) == std::string::npos);
    }
    CHECK(wgmma.find("attention/mask.cuh") != std::string::npos);
    CHECK(wgmma.find("attention/mma/") == std::string::npos);
    CHECK(wgmma.find("sm_90a") != std::string::npos);
}

TEST_CASE("a merge's key covers its own headers, not the attention's", "[engine][merge]") {
    const auto cubins = cubins_without_cache();
    std::set<std::string> keys;
    for (DType dtype : {DType::fp16, DType::bf16}) {
        for (std::int64_t dim : {64, 128}) {
            for (int alignment : {16, 8, 4, 2}) {
                const auto set = kernels({.op = Op::merge,
                                          .dtype = dtype,
                                          .head_dim_vo = dim,
                                          .q_heads = 1,
                                          .alignment = alignment},
                                         90);
                keys.insert(cubins.source_of(set.front()).key.hex());
            }
        }
    }
    CHECK(keys.size() == 16);
    const auto source =
        cubins.source_of(kernels({.op = Op::merge, .head_dim_vo = 64, .q_heads = 1}, 90).front());
    for (const char* header : {"attention/merge/states.cuh", "abi/merge_arguments.h", "common/copy.cuh"})
        CHECK(source.fields_json.find(header) != std::string::npos);
    CHECK(source.fields_json.find("attention/mma/") == std::string::npos);
}

TEST_CASE("nothing of this machine is in a key or a source", "[engine]") {
    const auto cubins = cubins_without_cache();
    const auto source = cubins.source_of(kernels({.head_dim_qk = 64, .q_heads = 1}, 89).front());
    CHECK(source.fields_json.find(ATTNSMITH_SOURCE_DIR) == std::string::npos);
    CHECK(source.unit.program.source.find('/') !=
          std::string::npos);  // comments and include paths of the templates
    CHECK(source.unit.program.source.find(ATTNSMITH_SOURCE_DIR) == std::string::npos);
}

TEST_CASE("a variable that changes what NVRTC makes is in the key where it is set", "[engine]") {
    const auto cubins = cubins_without_cache();
    const auto kernel = kernels({.head_dim_qk = 64, .q_heads = 1}, 89).front();
    const auto plain = cubins.source_of(kernel);
    std::set<std::string> keys = {plain.key.hex()};
    for (const compiler::EnvironmentVariable& variable : compiler::kNvrtcVariables) {
        CAPTURE(variable.name);
        CHECK(plain.fields_json.find(variable.name) == std::string::npos);
        for (const char* value : {"nvvm70", "nvvm-latest", ""}) {
            ::setenv(variable.name, value, 1);
            const auto source = cubins.source_of(kernel);
            if (variable.in_key)
                CHECK(keys.insert(source.key.hex()).second);
            else
                CHECK(source.key == plain.key);
        }
        ::unsetenv(variable.name);
    }
    CHECK(cubins.source_of(kernel).key == plain.key);
}

TEST_CASE("what changes machine code in this NVRTC is in the key", "[engine][nvrtc]") {
    const auto nvrtc = compiler::Nvrtc::open(test::nvrtc_options());
    const compiler::Program program{
        .name = "unit.cu",
        .source =
            "extern \"C\" __global__ void k(float* a, const float* b, int n) { float s = 0; for (int i = 0; "
            "i < n; ++i) s += __expf(b[i * 32 + threadIdx.x]) * s; a[threadIdx.x] = s / 3.f; }\n",
        .headers = {},
        .target = "sm_90a",
        .options = {}};
    const auto plain = nvrtc->compile(program).cubin;
    int outside = 0;
    for (const compiler::EnvironmentVariable& variable : compiler::kNvrtcVariables) {
        if (variable.in_key) continue;
        ++outside;
        CAPTURE(variable.name);
        ::setenv(variable.name, "1", 1);
        CHECK(nvrtc->compile(program).cubin == plain);
        ::unsetenv(variable.name);
    }
    CHECK(outside > 0);
}

TEST_CASE("templates include nothing that is not embedded", "[engine]") {
    for (const compiler::EmbeddedFile& file : compiler::embedded_files()) {
        CAPTURE(std::string(file.name));
        REQUIRE_NOTHROW(compiler::reachable_headers(file.text));
    }
    REQUIRE_THROWS_AS(compiler::reachable_headers("#include \"nowhere.cuh\"\n"), Error);
}
