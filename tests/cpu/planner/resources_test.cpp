// What an SM holds: CTAs are planned within its shared memory, registers and threads, and no fewer than fit.
#include <fmt/format.h>

#include <string>
#include <vector>

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

TEST_CASE("a wgmma kernel has an SM to itself, and fits it", "[planner][resources]") {
    const DeviceTraits device = families::traits_of(90);
    int kernels = 0;
    for (const AttentionSpec& spec : specs()) {
        for (const KernelConfig& kernel : families::attention_wgmma::family().tunable(spec, device)) {
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
