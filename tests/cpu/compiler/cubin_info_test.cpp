// compiler/cubin_info: ptxas' report, and cubins that are whole, cut off and changed.
#include "compiler/cubin_info.hpp"

#include <elf.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compiler/nvrtc.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith::compiler;

namespace {

constexpr const char* kSource = R"(
extern "C" __device__ unsigned attnsmith_shared_bytes = 98304;
extern "C" __device__ const unsigned a_constant = 5;
extern "C" __constant__ unsigned in_constant_memory = 77;
extern "C" __device__ unsigned zero = 0;
extern "C" __device__ unsigned pair[2] = {1, 2};
__device__ __noinline__ void helper(float* x) { x[1] += 1; }
extern "C" __global__ void second(float* x) { helper(x); }
extern "C" __global__ void first(float* x) { extern __shared__ float s[]; s[threadIdx.x] = *x; *x = s[0]; }
)";

std::vector<std::byte> cubin(const std::string& target) {
    Program program;
    program.name = "unit.cu";
    program.source = kSource;
    program.target = target;
    return Nvrtc::open(attnsmith::test::nvrtc_options())->compile(program).cubin;
}

// A copy in memory of exactly its size, so that a sanitizer sees a read past the end.
std::optional<CubinInfo> parse_exactly(const std::vector<std::byte>& bytes, std::size_t size) {
    const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
    if (size > 0) std::memcpy(copy.get(), bytes.data(), size);
    return CubinInfo::parse({copy.get(), size});
}

// Uses all that a parsed file says.
std::size_t use(const std::optional<CubinInfo>& info) {
    if (!info) return 0;
    std::size_t sum = info->read_u32("attnsmith_shared_bytes").value_or(0) + info->has_entry("first");
    for (const std::string& entry : info->entries()) sum += entry.size();
    return sum + static_cast<std::size_t>(info->sm());
}

}  // namespace

TEST_CASE("cubin: entries, architecture and variables", "[cubin]") {
    for (const auto& [target, sm] : {std::pair{"sm_80", 80}, {"sm_89", 89}, {"sm_90", 90}, {"sm_90a", 90}}) {
        INFO(target);
        const std::vector<std::byte> bytes = cubin(target);
        const auto info = CubinInfo::parse(bytes);
        REQUIRE(info.has_value());
        CHECK(info->sm() == sm);
        CHECK(info->entries() == std::vector<std::string>{"first", "second"});
        CHECK(info->has_entry("first"));
        CHECK_FALSE(info->has_entry("helper"));
        CHECK_FALSE(info->has_entry(""));
        CHECK(info->read_u32("attnsmith_shared_bytes") == 98304u);
        CHECK(info->read_u32("a_constant") == 5u);
        CHECK(info->read_u32("in_constant_memory") == 77u);
        CHECK(info->read_u32("zero") == 0u);
        CHECK_FALSE(info->read_u32("pair").has_value());
        CHECK_FALSE(info->read_u32("nothing").has_value());
        CHECK_FALSE(info->read_u32("first").has_value());
    }
}

TEST_CASE("cubin: architectures of the newer file ABI", "[cubin]") {
    const auto nvrtc = Nvrtc::open(attnsmith::test::nvrtc_options());
    int seen = 0;
    for (const int arch : nvrtc->supported_archs()) {
        if (arch < 100) continue;
        ++seen;
        const auto info = CubinInfo::parse(cubin("sm_" + std::to_string(arch)));
        REQUIRE(info.has_value());
        CHECK(info->sm() == arch);
        CHECK(info->read_u32("attnsmith_shared_bytes") == 98304u);
    }
    if (nvrtc->version().major >= 13) CHECK(seen > 0);  // an older one may know none
}

TEST_CASE("cubin: a file that is cut off anywhere is refused", "[cubin]") {
    const std::vector<std::byte> bytes = cubin("sm_90");
    REQUIRE(parse_exactly(bytes, bytes.size()).has_value());
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const std::size_t needed = header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr);
    std::size_t accepted = 0;
    for (std::size_t size = 0; size < needed; ++size)
        if (parse_exactly(bytes, size)) ++accepted;
    CHECK(accepted == 0);
}

TEST_CASE("cubin: changed bytes never lead astray", "[cubin]") {
    const std::vector<std::byte> bytes = cubin("sm_90");
    std::mt19937 random(20240607);
    std::size_t sum = 0;
    for (int round = 0; round < 20000; ++round) {
        std::vector<std::byte> changed = bytes;
        const int count = 1 + static_cast<int>(random() % 8);
        for (int i = 0; i < count; ++i) {
            // Half of the changes hit the headers, where they do the most harm.
            Elf64_Ehdr header;
            std::memcpy(&header, bytes.data(), sizeof header);
            const std::size_t tables = header.e_shnum * sizeof(Elf64_Shdr);
            const std::size_t at = random() % 4 == 0   ? random() % sizeof header
                                   : random() % 2 == 0 ? header.e_shoff + random() % tables
                                                       : random() % bytes.size();
            changed[at] = random() % 4 == 0 ? std::byte{0xff} : static_cast<std::byte>(random());
        }
        sum += use(parse_exactly(changed, changed.size()));
    }
    CHECK(sum > 0);
}

TEST_CASE("cubin: what is no cubin", "[cubin]") {
    CHECK_FALSE(CubinInfo::parse({}).has_value());
    std::vector<std::byte> bytes(256, std::byte{0});
    CHECK_FALSE(CubinInfo::parse(bytes).has_value());
    std::memcpy(bytes.data(), ELFMAG, SELFMAG);
    CHECK_FALSE(CubinInfo::parse(bytes).has_value());
}

TEST_CASE("ptxas' report: as NVRTC 12.0 writes it", "[cubin]") {
    const auto entries = parse_ptxas_log(
        "ptxas info    : 324 bytes gmem\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
        "ptxas info    : Function properties for second\n"
        "ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 1024 bytes smem\n"
        "ptxas info    : Function properties for _Z4slowPfi\n"
        "ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
        "ptxas info    : Function properties for first\n"
        "ptxas         .     872 bytes stack frame, 1216 bytes spill stores, 1352 bytes spill loads\n"
        "ptxas info    : Used 32 registers\n");
    REQUIRE(entries.size() == 2);
    CHECK(entries[0] == EntryResources{"second", "sm_90a", 40, 256, 4, 8, 1024});
    CHECK(entries[1] == EntryResources{"first", "sm_90a", 32, 872, 1216, 1352, 0});
}

TEST_CASE("ptxas' report: as NVRTC 12.8 and newer write it", "[cubin]") {
    const auto entries = parse_ptxas_log(
        "unit.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n\n"
        "ptxas info    : 20 bytes gmem, 4 bytes cmem[3]\n"
        "ptxas info    : Compiling entry function 'attention' for 'sm_80'\n"
        "ptxas info    : Function properties for attention\n"
        "ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 16 bytes smem, "
        "472 "
        "bytes cmem[0]\n"
        "ptxas info    : Compile time = 18.241 ms\n");
    REQUIRE(entries.size() == 1);
    CHECK(entries[0] == EntryResources{"attention", "sm_80", 255, 8, 0, 0, 16});
}

TEST_CASE("ptxas' report: nothing in it, or nonsense", "[cubin]") {
    CHECK(parse_ptxas_log("").empty());
    CHECK(parse_ptxas_log("unit.cu(1): error: bytes stack frame\n: Used registers").empty());
    CHECK(parse_ptxas_log("ptxas info : Compiling entry function '").size() == 1);
    CHECK(parse_ptxas_log("Compiling entry function 'x' for 'sm_9\n: Used 99999999999999999999 registers")[0]
              .registers_per_thread == 0);
}
