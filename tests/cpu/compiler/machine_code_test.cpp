// Every kernel of the families, for every SM, through NVRTC: it compiles, spills nothing, keeps to the
// registers and the shared memory that it was planned with, and is made of the instructions that its backend
// promises.
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "compiler/cubin_info.hpp"
#include "compiler/specialise.hpp"
#include "planner/plan.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using planner::KernelConfig;

namespace {

// Read off nvdisasm -hex.
enum Opcode : std::uint16_t { kHmma = 0x23c, kLdsm = 0x83b, kLdgsts = 0xfae, kStl = 0x387, kLdl = 0x983 };

std::set<KernelConfig> kernels_of(const std::vector<AttentionSpec>& specs, int sm) {
    std::set<KernelConfig> kernels;
    for (const AttentionSpec& spec : specs) {
        for (const KernelConfig& kernel :
             planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning()).kernels)
            kernels.insert(kernel);
    }
    return kernels;
}

// The kernels whose machine code is looked at on every SM: each head dim of the main shapes, storage and
// tile; and the logit transforms, small alignments and wide indices at one head dim.
std::set<KernelConfig> kernels_on(int sm) {
    std::vector<AttentionSpec> specs;
    for (const auto& [qk, vo] :
         {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}, {72, 72}, {200, 200}}) {
        for (bool paged : {false, true}) {
            AttentionSpec spec{
                .dtype = DType::bf16, .head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 8, .kv_heads = 2};
            if (paged) spec.kv = KvStorage::paged, spec.page_size = 16;
            specs.push_back(spec);
        }
    }
    AttentionSpec extras = specs[5];
    extras.dtype = DType::f16;
    extras.softcap = 50.0;
    specs.push_back(extras);
    extras.alibi = true;
    extras.index_dtype = DType::i64;
    for (int alignment : {8, 4, 2}) {
        extras.alignment = alignment;
        specs.push_back(extras);
    }
    return kernels_of(specs, sm);
}

// Op merge: what head dims and alignments make of it, with both dtypes.
std::set<KernelConfig> merges_on(int sm) {
    std::vector<AttentionSpec> specs;
    for (const std::int64_t dim : {8, 64, 72, 128, 256}) {
        for (const int alignment : {16, 8, 4, 2}) {
            if (alignment != 16 && dim != 72) continue;
            for (const DType dtype : {DType::f16, DType::bf16})
                specs.push_back({.op = Op::merge,
                                 .dtype = dtype,
                                 .head_dim_vo = dim,
                                 .q_heads = 8,
                                 .alignment = alignment});
        }
    }
    return kernels_of(specs, sm);
}

// What is wrong with a kernel; empty if nothing is.
std::string inspect(const compiler::Nvrtc& nvrtc, const KernelConfig& kernel) {
    const compiler::TranslationUnit unit = compiler::specialise(kernel);
    const compiler::Compiled compiled = nvrtc.compile(unit.program);
    std::string wrong;
    const auto expect = [&](bool holds, const std::string& what) {
        if (!holds) wrong += kernel.name() + " for " + kernel.target + ": " + what + "; ";
    };
    const auto reports = compiler::parse_ptxas_log(compiled.log);
    expect(reports.size() == 1 && reports[0].entry == unit.entry, "no report of ptxas");
    if (reports.size() == 1) {
        expect(reports[0].spill_store_bytes + reports[0].spill_load_bytes == 0, "spills");
        expect(reports[0].stack_bytes == 0, "uses a stack");
        expect(reports[0].registers_per_thread <= kernel.registers_ceiling(),
               "too many registers for its occupancy");
        expect(reports[0].static_shared_bytes == 0, "has static shared memory that nobody counts");
    }
    const auto info = compiler::CubinInfo::parse(compiled.cubin);
    expect(info && info->sm() == kernel.sm, "is for another SM");
    expect(info && info->read_u32(compiler::kSharedBytesSymbol) ==
                       static_cast<std::uint32_t>(kernel.shared_bytes),
           "lays out other shared memory than planned");
    std::map<std::uint16_t, int> opcodes;
    if (info)
        for (const std::uint16_t opcode : info->opcodes()) ++opcodes[opcode];
    expect(opcodes[kStl] == 0 && opcodes[kLdl] == 0, "touches local memory");
    if (kernel.backend == planner::Backend::mma) {
        expect(opcodes[kHmma] > 0, "has no HMMA");
        expect(opcodes[kLdsm] > 0, "has no LDSM");
        expect((opcodes[kLdgsts] > 0) == (kernel.alignment >= 4),
               "LDGSTS: cp.async needs 4 bytes of alignment");
    } else {
        expect(opcodes[kHmma] == 0, "multiplies on tensor cores");
    }
    return wrong;
}

std::string inspect_all(const std::set<KernelConfig>& set) {
    const auto nvrtc = compiler::Nvrtc::open(test::nvrtc_options());
    const std::vector<KernelConfig> kernels(set.begin(), set.end());
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::string wrong;
    const auto work = [&] {
        for (std::size_t i; (i = next++) < kernels.size();) {
            std::string here;
            try {
                here = inspect(*nvrtc, kernels[i]);
            } catch (const std::exception& error) {
                here = kernels[i].name() + ": " + error.what() + "; ";
            }
            const std::lock_guard lock(mutex);
            wrong += here;
        }
    };
    {
        std::vector<std::jthread> threads;
        for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
            threads.emplace_back(work);
    }
    return wrong;
}

}  // namespace

TEST_CASE("the machine code of every kernel is as planned", "[compiler][machine_code]") {
    for (const planner::DeviceTraits& device : planner::known_devices()) {
        INFO("sm_" << device.sm);
        CHECK(inspect_all(kernels_on(device.sm)) == "");
    }
}

TEST_CASE("the machine code of every merge is as planned", "[compiler][machine_code][merge]") {
    for (const planner::DeviceTraits& device : planner::known_devices()) {
        INFO("sm_" << device.sm);
        CHECK(inspect_all(merges_on(device.sm)) == "");
    }
}
