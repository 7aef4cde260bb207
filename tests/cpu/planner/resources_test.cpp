// What an SM holds: CTAs are planned within its shared memory, registers and threads, and no fewer than fit.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "families/attention_family.hpp"
#include "families/attention_mma/family.hpp"
#include "families/attention_mma/kernel.hpp"
#include "families/attention_wgmma/family.hpp"
#include "families/attention_wgmma/kernel.hpp"
#include "problem/request/problem.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using families::Backend;
using families::DeviceTraits;
using families::KernelConfig;

namespace {

// Registers are given to whole threads in steps of eight.
std::int64_t registers_of(const KernelConfig& kernel) {
    const int registers =
        kernel.backend() == Backend::wgmma
            ? kernel.registers_ceiling()
            : families::attention_mma::registers_of(kernel.as<families::attention_mma::Kernel>());
    return (registers + 7) / 8 * 8;
}

bool fits(const KernelConfig& kernel, std::int64_t ctas, const DeviceTraits& device) {
    return ctas * (kernel.shared_bytes + families::kReservedSharedBytes) <= device.shared_bytes_per_sm &&
           ctas * kernel.threads * registers_of(kernel) <= device.registers_per_sm &&
           ctas * kernel.threads <= device.threads_per_sm && ctas <= device.ctas_per_sm;
}

// Head dims of k and of v in all their sizes, and some pairs.
std::vector<AttentionSpec> specs() {
    std::vector<AttentionSpec> all;
    for (std::int64_t qk = 8; qk <= 256; qk += 8) {
        for (const std::int64_t vo : {qk, std::int64_t{64}, std::int64_t{256}}) {
            AttentionSpec spec{.head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 8};
            if (qk % 16 != 0) spec.kv = KvStorage::paged, spec.page_size = 16;
            all.push_back(problem::validate(spec, {}).spec);
        }
    }
    return all;
}

}  // namespace

TEST_CASE("as many CTAs of an mma kernel are planned to an SM as it holds", "[planner][resources]") {
    std::vector<DeviceTraits> devices = families::known_devices();
    // Ones that have little of one thing.
    for (const DeviceTraits& device : families::known_devices()) {
        DeviceTraits few = device;
        few.threads_per_sm = 256;
        devices.push_back(few);
        few = device, few.ctas_per_sm = 1;
        devices.push_back(few);
        few = device, few.registers_per_sm = 49152;
        devices.push_back(few);
        few = device,
        few.shared_bytes_per_sm = device.shared_bytes_per_block;  // without what a CTA takes on top
        devices.push_back(few);
    }
    for (const DeviceTraits& device : devices) {
        int kernels = 0;
        for (const AttentionSpec& spec : specs()) {
            std::vector<Refusal> rejected;
            for (const families::Candidate& one :
                 families::attention_mma::candidates(spec, device, families::TuningTable({}), rejected)) {
                const KernelConfig& kernel = one.kernel;
                CAPTURE(device.sm, device.threads_per_sm, kernel.name(), kernel.ctas_per_sm,
                        kernel.shared_bytes, registers_of(kernel));
                REQUIRE(kernel.shared_bytes <= device.shared_bytes_per_block);
                REQUIRE(kernel.ctas_per_sm >= 1);
                REQUIRE(fits(kernel, kernel.ctas_per_sm, device));
                REQUIRE_FALSE(fits(kernel, kernel.ctas_per_sm + 1, device));
                ++kernels;
            }
        }
        CHECK(kernels > 0);
    }
}

TEST_CASE("every mma kernel that tables may choose for decode fits the SM", "[planner][resources]") {
    for (const DeviceTraits& device : families::known_devices()) {
        for (const AttentionSpec& spec : specs()) {
            const std::vector<KernelConfig> kernels = families::attention_mma::tunable(spec, device);
            REQUIRE(!kernels.empty());
            for (const KernelConfig& kernel : kernels) {
                CAPTURE(device.sm, kernel.name(), kernel.shared_bytes);
                REQUIRE(kernel.tile_q() == families::kDecodeRows);
                REQUIRE(kernel.shared_bytes <= device.shared_bytes_per_block);
                REQUIRE(fits(kernel, kernel.ctas_per_sm, device));
            }
            AttentionSpec bitwise = spec;
            bitwise.consistency = Consistency::bitwise;
            REQUIRE(families::attention_mma::tunable(bitwise, device).empty());
        }
    }
}

TEST_CASE("kernels dequantize 8-bit keys at their family's stage, and scale O where a tensor has one scale",
          "[planner][resources]") {
    using Stage = attnsmith::abi::OperandStage;
    int stored = 0;
    for (const Op op : {Op::attention, Op::mla}) {
        for (const DType kv_dtype : {DType::bf16, DType::e4m3, DType::e5m2}) {
            for (const KvScale scale : {KvScale::tensor, KvScale::head, KvScale::token_head}) {
                AttentionSpec spec{.op = op, .q_heads = 16, .kv_heads = 16};
                if (op == Op::mla)
                    spec.head_dim_ckv = 512, spec.head_dim_kpe = 64, spec.scale = 0.1, spec.kv_heads = 1;
                else
                    spec.head_dim_qk = spec.head_dim_vo = 128;
                const bool is_stored = kv_dtype != DType::bf16;
                if (is_stored) {
                    if (op == Op::mla && scale == KvScale::head) continue;  // latents have no heads
                    spec.kv_dtype = kv_dtype;
                    spec.kv_scale = scale;
                }
                spec = problem::validate(spec, {}).spec;
                const bool is_of_tokens = is_stored && scale == KvScale::token_head;
                std::vector<Refusal> rejected;
                const DeviceTraits device = families::traits_of(90);
                for (const families::Candidate& one :
                     families::attention_mma::candidates(spec, device, families::TuningTable({}), rejected)) {
                    const auto kernel = one.kernel.as<families::attention_mma::Kernel>();
                    CAPTURE(one.kernel.name());
                    CHECK(kernel.operand_stage ==
                          (is_stored ? Stage::dequant_in_registers : Stage::as_loaded));
                    CHECK(kernel.value_scale == (is_stored && !is_of_tokens));
                    stored += is_stored;
                }
                for (const families::Candidate& one : families::attention_wgmma::family().candidates(
                         spec, device, families::TuningTable({}), rejected)) {
                    const auto kernel = one.kernel.as<families::attention_wgmma::Kernel>();
                    CAPTURE(one.kernel.name());
                    const Stage here = op == Op::mla ? Stage::dequant_in_place : Stage::dequant_ring;
                    const bool is_ahead = kernel.operand_stage == Stage::dequant_ahead;
                    CHECK((kernel.operand_stage == (is_stored ? here : Stage::as_loaded) ||
                           (is_stored && is_ahead)));
                    CHECK(kernel.key_value == (is_ahead ? DType::fp16 : is_stored ? kv_dtype : DType::bf16));
                    CHECK(kernel.value_scale == (is_stored && !is_of_tokens));
                    stored += is_stored;
                }
            }
        }
    }
    CHECK(stored > 20);
}

TEST_CASE("a wgmma kernel has an SM to itself, and fits it", "[planner][resources]") {
    const DeviceTraits device = families::traits_of(90);
    int kernels = 0;
    for (const AttentionSpec& spec : specs()) {
        for (const KernelConfig& kernel :
             families::attention_wgmma::family().attention()->tunable(spec, device)) {
            ++kernels;
            CAPTURE(kernel.name(), kernel.shared_bytes);
            REQUIRE(kernel.ctas_per_sm == 1);
            REQUIRE(kernel.shared_bytes <= device.shared_bytes_per_block);
            REQUIRE(fits(kernel, 1, device));
            const auto constants = kernel.as<families::attention_wgmma::Kernel>();
            REQUIRE((constants.producer_registers + constants.consumer_registers * constants.consumers) *
                        128 <=
                    device.registers_per_sm);
        }
    }
    CHECK(kernels > 0);
}

// Ranked by work of its own kind: a decode waits for device memory, and wants many bytes of it under way;
// tiles of more rows multiply, and want few barriers.
TEST_CASE("each query tile has the key tile and the stages that suit its work", "[planner][resources]") {
    struct Choice {
        int sm;
        std::int64_t head_dim;
        std::vector<std::string> tiles;
    };
    for (const auto& [sm, head_dim, wanted] : {
             Choice{80, 64, {"16x64 stages 3", "64x32 stages 3", "128x128 stages 3"}},
             Choice{80, 128, {"16x64 stages 2", "64x64 stages 2", "128x64 stages 3"}},
             Choice{86, 64, {"16x64 stages 2", "64x32 stages 3", "128x128 stages 2"}},
             Choice{86, 128, {"16x64 stages 1", "64x64 stages 1", "128x64 stages 2"}},
             Choice{90, 64, {"16x128 stages 2", "64x32 stages 3", "128x128 stages 3"}},
             Choice{90, 128, {"16x64 stages 3", "64x64 stages 3", "128x64 stages 3"}},
             Choice{90, 256, {"16x64 stages 1", "64x32 stages 2", "128x32 stages 3"}},
         }) {
        CAPTURE(sm, head_dim);
        std::vector<Refusal> rejected;
        std::vector<std::string> tiles;
        const AttentionSpec spec = problem::validate({.head_dim_qk = head_dim, .q_heads = 8}, {}).spec;
        for (const families::Candidate& one : families::attention_mma::candidates(
                 spec, families::traits_of(sm), families::TuningTable({}), rejected))
            tiles.push_back(fmt::format("{}x{} stages {}", one.kernel.tile_q(), one.kernel.tile_kv(),
                                        one.kernel.stages()));
        CHECK(tiles == wanted);
    }
}
