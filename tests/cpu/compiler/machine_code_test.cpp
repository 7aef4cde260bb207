// Every kernel of the families, for every SM, through NVRTC: it compiles, spills nothing, keeps to the
// registers and the shared memory that it was planned with, and is made of the instructions that its backend
// promises.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "abi/attention_persistent.h"
#include "compiler/cubin_info.hpp"
#include "cubins/translation_unit.hpp"
#include "families/attention_family.hpp"
#include "families/attention_mma/kernel.hpp"
#include "families/attention_wgmma/kernel.hpp"
#include "families/source.hpp"
#include "kernel_code/code_sections.hpp"
#include "kernel_code/every_kernel.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using namespace attnsmith::test;
using families::KernelConfig;

namespace {

// Read off nvdisasm -hex, as are the fields of Instruction: sm_70 to sm_121 share the encoding of opcodes,
// the low 12 bits of 16 bytes.
enum Opcode : std::uint16_t {
    kHmma = 0x23c,
    kLdsm = 0x83b,
    kLdgsts = 0xfae,
    kStg = 0x986,
    kStl = 0x387,
    kLdl = 0x983,
    kMufu = 0x308,
    kHgmmaShared = 0x9f0,  // A from shared memory
    kHgmma = 0xdf0,        // A from registers
    kWarpgroup = 0x9c5,
    kUsetmaxreg = 0x9c8,
    kUtmaldg = 0x5b4,
    kSyncsExchange = 0x5b2  // an mbarrier is initialised
};

struct Instruction {
    std::uint64_t low, high;

    int opcode() const { return static_cast<int>(low & 0xfff); }
    int hgmma_n() const { return static_cast<int>((low >> 53 & 0x1f) + 1) * 8; }
    int usetmaxreg_count() const { return static_cast<int>(low >> 32 & 0xff); }
    // Of a store to global memory: 4, 8 or 16, and 0 for what is less.
    int store_bytes() const { return (high >> 9 & 7) < 4 ? 0 : 4 << ((high >> 9 & 7) - 4); }
    bool is_ex2() const { return opcode() == kMufu && (high >> 10 & 0xf) == 2; }
    // WARPGROUP.DEPBAR.LE gsb0, at_most
    bool is_wait(unsigned at_most) const {
        return opcode() == kWarpgroup && (low >> 47 & 1) == 1 && (high >> 8 & 0xff) == at_most;
    }
};

// REQUIRES: CubinInfo has found the cubin to be sound.
std::vector<Instruction> instructions_of(const std::vector<std::byte>& cubin) {
    const std::vector<std::byte> code = test::code_of(cubin);
    std::vector<Instruction> instructions(code.size() / sizeof(Instruction));
    std::memcpy(instructions.data(), code.data(), instructions.size() * sizeof(Instruction));
    return instructions;
}

// What is wrong with a wgmma kernel beyond what may be wrong with any.
void inspect_wgmma(const KernelConfig& kernel, const compiler::Compiled& compiled, const auto& expect) {
    // Some of the C75xx say that products are serialised, others that registers are not handed over.
    for (std::size_t at = 0; (at = compiled.log.find("(C7", at)) != std::string::npos; ++at)
        expect(false, compiled.log.substr(at, compiled.log.find('\n', at) - at));
    std::set<std::pair<int, int>> products;
    std::set<int> registers;
    std::vector<int> weights;  // from each wait for S to the wait for O that follows
    int barriers = 0;
    bool copies = false, gathers = false, counts = false;
    for (const Instruction& instruction : instructions_of(compiled.cubin)) {
        const int opcode = instruction.opcode();
        copies |= opcode == kUtmaldg;
        gathers |= opcode == kLdgsts;
        barriers += opcode == kSyncsExchange;
        if (opcode == kHgmma || opcode == kHgmmaShared) products.insert({opcode, instruction.hgmma_n()});
        if (opcode == kUsetmaxreg) registers.insert(instruction.usetmaxreg_count());
        if (instruction.is_wait(1)) {
            counts = true;
            weights.push_back(0);
        } else if (instruction.is_wait(0)) {
            counts = false;
        } else if (counts && instruction.is_ex2()) {
            ++weights.back();
        }
    }
    const auto constants = kernel.as<families::attention_wgmma::Kernel>();
    std::set<std::pair<int, int>> planned{
        {constants.queries_in_registers ? kHgmma : kHgmmaShared, kernel.tile_kv()}};
    if (constants.is_wide())
        planned.insert({kHgmmaShared, abi::piece_columns(constants.shape(), true)});
    else
        planned.insert({kHgmma, constants.head_dim_vo});
    expect(products == planned, "multiplies other shapes");
    std::set<int> handed{constants.producer_registers, constants.consumer_registers};
    if (constants.is_wide()) handed.insert(constants.score_registers);
    const bool widens = constants.operand_stage == abi::OperandStage::dequant_ring;
    if (widens) handed.insert(abi::dequant_registers(constants.shape()));
    expect(registers == handed, "hands over other registers");
    expect(copies, "has no UTMALDG");
    // Two of the scheduler's and the V loader's own, full and empty ones of the rings: two work tiles, the
    // warpgroups' queries, and the stages of K and of V. Wide kernels have rings for each piece of their
    // columns, and barriers for the rows of a work tile and for weights: with latents one a stage, beside the
    // position's, and the K loader's own, else full and empty ones of two blocks. Where keys are widened
    // there are two stages of what is multiplied beside those that are loaded.
    const int pieces =
        abi::column_pieces(constants.shape(), false) + abi::column_pieces(constants.shape(), true);
    const int row_groups = kernel.tile_q() / abi::kWgmmaRows;
    const int of_wide = constants.latent ? 2 * constants.stages + 2 + 1 : constants.is_wide() ? 2 * 2 + 2 : 0;
    const int stages = constants.stages + (widens ? 2 : 0);
    expect(barriers == 2 + 2 * (2 + row_groups + stages * pieces) + of_wide,
           "initialises " + std::to_string(barriers) + " barriers");
    const abi::PersistentLayout layout = abi::persistent_layout(constants.shape());
    expect(layout.total - layout.barriers == barriers * 8, "has room for other barriers than it initialises");
    expect(gathers == constants.gather, "LDGSTS: of kernels that gather, and no others");
    // Wide kernels have different warpgroups for O and the weights, so that no wait for O comes behind a
    // softmax.
    if (constants.is_wide()) return;
    // The product with V hides the softmax only if weights are made before the wait for it: three eighths of
    // them at least, and all where there are three warpgroups. A soft cap's tanh is another EX2.
    const int eights =
        kernel.tile_q() == 3 * abi::kWgmmaRows ? kernel.tile_kv() / 8 : kernel.tile_kv() / 8 * 3 / 8;
    const int expected = eights * 4 + (constants.softcap ? kernel.tile_kv() / 2 : 0);
    const int made = weights.empty() ? 0 : *std::min_element(weights.begin(), weights.end());
    expect(made >= expected, "makes " + std::to_string(made) + " of " + std::to_string(expected) +
                                 " EX2 before it waits for O");
}

// What is wrong with how an attention writes an O of fp32. Rows that are aligned go by way of shared memory
// in 16 bytes at a time with mma, and from registers in 8 bytes with wgmma; of less are the LSE and the
// status alone. Who joins parts has an LSE to store of these, too, and a count to clear.
void inspect_fp32(const KernelConfig& kernel, const compiler::Compiled& compiled, const auto& expect) {
    std::map<int, int> stores;
    for (const Instruction& instruction : instructions_of(compiled.cubin))
        if (instruction.opcode() == kStg) ++stores[instruction.store_bytes()];
    int alignment = 16;
    int most = families::takes(kernel, families::SplitPolicy::shares) ? 4 : 3;
    if (kernel.backend() == families::Backend::mma) {
        const auto mma = kernel.as<families::attention_mma::Kernel>();
        alignment = mma.alignment;
        // A thread of a wide kernel has two rows of every 16, each of which has stores of its own: its LSE,
        // and a part's maximum and sum; where rows are cut, at each cut and at their end.
        if (mma.wide) most = 2 + 2 * mma.warps_q * 3 * (mma.absolute_cuts ? 2 : 1);
        expect(alignment < 16 || stores[16] > 0, "stores no 16 bytes at a time");
    } else {
        const auto wgmma = kernel.as<families::attention_wgmma::Kernel>();
        // Two rows, as O and as a part of it; in wide kernels in pieces of half of the columns, which say
        // each for itself whose the LSE is.
        const int columns = wgmma.is_wide() ? wgmma.head_dim_vo / 2 : wgmma.head_dim_vo;
        if (wgmma.is_wide()) most = 2 + 2 * columns / abi::piece_columns(wgmma.shape(), true) * 3;
        expect(stores[8] >= 2 * 2 * columns / 8, "stores less than 8 bytes of O, or of a split's result");
    }
    const int narrow = stores[0] + stores[4];
    expect((narrow <= most) == (alignment >= 8),
           "has " + std::to_string(narrow) + " stores of less than 8 bytes");
}

// What is wrong with a kernel; empty if nothing is.
std::string inspect(const compiler::Nvrtc& nvrtc, const KernelConfig& kernel) {
    const engine::TranslationUnit unit = engine::translation_unit(kernel);
    const compiler::Compiled compiled = nvrtc.compile(unit.program);
    std::string wrong;
    const auto expect = [&](bool holds, const std::string& what) {
        if (!holds) wrong += kernel.name() + " for " + kernel.target + ": " + what + "; ";
    };
    const auto reports = compiler::parse_ptxas_log(compiled.log);
    expect(reports.size() == 1 && reports[0].entry == unit.entry, "no report of ptxas");
    if (reports.size() == 1) {
        expect(reports[0].spill_store_bytes + reports[0].spill_load_bytes == 0,
               "spills " + std::to_string(reports[0].spill_store_bytes) + " bytes");
        expect(reports[0].stack_bytes == 0, "uses a stack");
        expect(reports[0].registers_per_thread <= kernel.registers_ceiling(),
               "too many registers for its occupancy");
        if (kernel.backend() == families::Backend::wgmma) {
            // Its warpgroups would wait for ever for registers that the launch does not have.
            const auto wgmma = kernel.as<families::attention_wgmma::Kernel>();
            const int of_scores = wgmma.is_wide() ? 1 : 0;
            const int handed = wgmma.producer_registers + wgmma.score_registers +
                               abi::dequant_registers(wgmma.shape()) +
                               (wgmma.consumers - of_scores) * wgmma.consumer_registers;
            expect(handed <= reports[0].registers_per_thread * kernel.threads / 128,
                   "hands over more registers than it is launched with");
        }
        expect(reports[0].static_shared_bytes == 0, "has static shared memory that nobody counts");
    }
    const auto info = compiler::CubinInfo::parse(compiled.cubin);
    expect(info && info->sm() == kernel.sm, "is for another SM");
    expect(info && info->read_u32(families::kSharedBytesSymbol) ==
                       static_cast<std::uint32_t>(kernel.shared_bytes),
           "lays out other shared memory than planned");
    std::map<int, int> opcodes;
    if (info)
        for (const Instruction& instruction : instructions_of(compiled.cubin))
            ++opcodes[instruction.opcode()];
    expect(opcodes[kStl] == 0 && opcodes[kLdl] == 0, "touches local memory");
    if (kernel.backend() == families::Backend::mma) {
        expect(opcodes[kHmma] > 0, "has no HMMA");
        expect(opcodes[kLdsm] > 0, "has no LDSM");
        expect((opcodes[kLdgsts] > 0) == (kernel.as<families::attention_mma::Kernel>().alignment >= 4),
               "LDGSTS: cp.async needs 4 bytes of alignment");
    } else {
        expect(opcodes[kHmma] == 0, "has HMMA");
    }
    if (info && kernel.backend() == families::Backend::wgmma) inspect_wgmma(kernel, compiled, expect);
    if (info && kernel.name().find(" to fp32") != std::string::npos) inspect_fp32(kernel, compiled, expect);
    return wrong;
}

// What is wrong with the kernels, which may be of several SMs; empty if nothing is.
std::string inspect_all(const Kernels& set) {
    if (set.empty()) return "there is no kernel to look at";
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

using KernelsOnSm = std::function<Kernels(int sm)>;

// What is looked at in every run: the kernels of the first SM of each generation, 8.x, 9.x, 10.x with 11.x,
// and 12.x. The others of a generation get the same machine code but for its schedule, or have tiles that fit
// into as much shared memory as sm_120 has.
Kernels once_a_generation(const KernelsOnSm& kernels_on_sm, int last_generation = 12) {
    Kernels kernels;
    std::set<int> seen;
    for (const families::DeviceTraits& device : families::known_devices()) {
        const int generation = device.sm / 10 == 11 ? 10 : device.sm / 10;
        if (generation <= last_generation && seen.insert(generation).second)
            kernels.merge(kernels_on_sm(device.sm));
    }
    return kernels;
}

// The same of 8.x alone: every SM runs this code. All of it on all SMs is looked at by [machine_code_of_all],
// which takes too long for every run, and compared between commits by tests/kernel_code/compare.py.
Kernels on_ampere(const KernelsOnSm& kernels_on_sm) { return once_a_generation(kernels_on_sm, 8); }

// One in four, in the order of the set, where neighbours differ in one constant.
Kernels quarter_of(const Kernels& all) {
    Kernels kernels;
    std::size_t at = 0;
    for (const KernelConfig& kernel : all)
        if (at++ % 4 == 0) kernels.insert(kernel);
    return kernels;
}

// Those of 8.x; and of 9.x what only it has, and a quarter of what it has in common with 8.x.
Kernels on_ampere_and_hopper(const KernelsOnSm& kernels_on_sm) {
    constexpr int kHopper = 90;
    Kernels kernels = on_ampere(kernels_on_sm), common;
    for (const KernelConfig& kernel : kernels_on_sm(kHopper))
        (kernel.backend() == families::Backend::wgmma ? kernels : common).insert(kernel);
    kernels.merge(quarter_of(common));
    return kernels;
}

}  // namespace

TEST_CASE("the machine code of every kernel is as planned", "[compiler][machine_code]") {
    Kernels kernels = on_ampere_and_hopper([](int sm) { return kernels_on(sm, kMainHeadDims); });
    // Of later generations, which run 8.x's code: enough to see that NVRTC makes of it what was planned.
    kernels.merge(once_a_generation(
        [](int sm) { return sm < 100 ? Kernels() : quarter_of(kernels_on(sm, kMainHeadDims)); }));
    // Of the others a quarter on the first SM, for their number would take minutes.
    kernels.merge(quarter_of(kernels_on(families::known_devices().front().sm, kOtherHeadDims)));
    CHECK(inspect_all(kernels) == "");
}

TEST_CASE("the machine code of kernels with scales of tokens is as planned", "[compiler][machine_code]") {
    CHECK(inspect_all(on_ampere([](int sm) { return token_scales_on(sm, {64, 128, 192, 512}); })) == "");
}

TEST_CASE("no two kernels have one name and target", "[compiler]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        std::set<std::string> names;
        for (const KernelConfig& kernel : every_kernel(device.sm)) {
            INFO(kernel.name() << " for " << kernel.target);
            CHECK(names.insert(kernel.name() + " " + kernel.target).second);
        }
    }
}

// Hidden, as it takes half an hour of 2 cores: run it by its name when NVRTC's version changes.
TEST_CASE("the machine code of every kernel on every SM is as planned", "[.][machine_code_of_all]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        INFO("sm_" << device.sm);
        CHECK(inspect_all(every_kernel(device.sm)) == "");
    }
}

TEST_CASE("the machine code of every wgmma kernel is as planned", "[compiler][machine_code][wgmma]") {
    Kernels kernels = wgmma_kernels({{128, 128}, {512, 512}});
    kernels.merge(wgmma_kernels({{64, 64}, {192, 128}, {256, 256}}, true));
    CHECK(inspect_all(kernels) == "");
}

TEST_CASE("the machine code of every kernel of latents is as planned", "[compiler][machine_code][mla]") {
    CHECK(inspect_all(on_ampere_and_hopper(latent_kernels_on)) == "");
}

TEST_CASE("the machine code of kernels that write fp32 is as planned", "[compiler][machine_code][fp32]") {
    CHECK(inspect_all(on_ampere_and_hopper([](int sm) { return fp32_kernels_on(sm, kMainHeadDims); })) == "");
}

TEST_CASE("merges of splits write an O of fp32 in 16 bytes at a time", "[compiler][machine_code][fp32]") {
    const auto nvrtc = compiler::Nvrtc::open(test::nvrtc_options());
    for (const int dim : {128, 256}) {
        int merges = 0;
        const AttentionSpec spec{.head_dim_qk = dim, .q_heads = 8, .o_dtype = DType::fp32};
        for (const KernelConfig& kernel : kernels_of({spec}, 90)) {
            if (kernel.family->role() != families::Role::merge_splits) continue;
            std::map<int, int> stores;
            for (const Instruction& instruction :
                 instructions_of(nvrtc->compile(engine::translation_unit(kernel).program).cubin))
                if (instruction.opcode() == kStg) ++stores[instruction.store_bytes()];
            INFO(kernel.name());
            CHECK(stores == std::map<int, int>{{4, 1}, {16, 2}});  // the LSE, and eight columns
            ++merges;
        }
        CHECK(merges == 1);
    }
}

TEST_CASE("the machine code of every merge is as planned", "[compiler][machine_code][merge]") {
    CHECK(inspect_all(once_a_generation(merges_on)) == "");
}

TEST_CASE("the machine code of every append is as planned", "[compiler][machine_code][append]") {
    CHECK(inspect_all(on_ampere(appends_on)) == "");
}

TEST_CASE("the machine code of top_k is as planned", "[compiler][machine_code][top_k]") {
    CHECK(inspect_all(once_a_generation(top_k_on)) == "");
}
