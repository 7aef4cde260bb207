#include "families/traits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"

namespace attnsmith::families {
namespace {

// A constant, not a static object of a function: a child forked while another thread made that would wait for
// it for ever.
struct Row {
    int sm;
    std::string_view name;
    int sm_count;
    std::int64_t shared_bytes_per_block;
    std::int64_t shared_bytes_per_sm;
    int threads_per_sm;
    int ctas_per_sm;
    int mma_flops;
    int wgmma_flops = 0;
    int dram_bytes;
};

constexpr Row kTable[] = {
    {.sm = 80,
     .name = "A100 (table)",
     .sm_count = 108,
     .shared_bytes_per_block = 166912,
     .shared_bytes_per_sm = 167936,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .mma_flops = 2048,
     .dram_bytes = 13},
    {.sm = 86,
     .name = "A10 (table)",
     .sm_count = 72,
     .shared_bytes_per_block = 101376,
     .shared_bytes_per_sm = 102400,
     .threads_per_sm = 1536,
     .ctas_per_sm = 16,
     .mma_flops = 1024,
     .dram_bytes = 5},
    {.sm = 87,
     .name = "Jetson AGX Orin (table)",
     .sm_count = 16,
     .shared_bytes_per_block = 166912,
     .shared_bytes_per_sm = 167936,
     .threads_per_sm = 1536,
     .ctas_per_sm = 16,
     .mma_flops = 2048,
     .dram_bytes = 10},
    {.sm = 89,
     .name = "L40S (table)",
     .sm_count = 142,
     .shared_bytes_per_block = 101376,
     .shared_bytes_per_sm = 102400,
     .threads_per_sm = 1536,
     .ctas_per_sm = 24,
     .mma_flops = 1024,
     .dram_bytes = 3},
    {.sm = 90,
     .name = "H100 SXM (table)",
     .sm_count = 132,
     .shared_bytes_per_block = 232448,
     .shared_bytes_per_sm = 233472,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .mma_flops = 2560,
     .wgmma_flops = 4096,
     .dram_bytes = 15},
    {.sm = 100,
     .name = "B200 (table)",
     .sm_count = 148,
     .shared_bytes_per_block = 232448,
     .shared_bytes_per_sm = 233472,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .mma_flops = 2048,
     .dram_bytes = 29},
    {.sm = 103,
     .name = "B300 (table)",
     .sm_count = 148,
     .shared_bytes_per_block = 232448,
     .shared_bytes_per_sm = 233472,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .mma_flops = 2048,
     .dram_bytes = 29},
    {.sm = 110,
     .name = "Jetson Thor (table)",
     .sm_count = 20,
     .shared_bytes_per_block = 232448,
     .shared_bytes_per_sm = 233472,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .mma_flops = 2048,
     .dram_bytes = 9},
    {.sm = 120,
     .name = "RTX 5090 (table)",
     .sm_count = 170,
     .shared_bytes_per_block = 101376,
     .shared_bytes_per_sm = 102400,
     .threads_per_sm = 1536,
     .ctas_per_sm = 24,
     .mma_flops = 1024,
     .dram_bytes = 5},
    {.sm = 121,
     .name = "DGX Spark (table)",
     .sm_count = 48,
     .shared_bytes_per_block = 101376,
     .shared_bytes_per_sm = 102400,
     .threads_per_sm = 1536,
     .ctas_per_sm = 24,
     .mma_flops = 1024,
     .dram_bytes = 3},
};

DeviceTraits traits_in(const Row& row) {
    return {{.sm = row.sm,
             .shared_bytes_per_block = row.shared_bytes_per_block,
             .shared_bytes_per_sm = row.shared_bytes_per_sm,
             .threads_per_sm = row.threads_per_sm,
             .ctas_per_sm = row.ctas_per_sm,
             .mma_flops = row.mma_flops,
             .wgmma_flops = row.wgmma_flops,
             .dram_bytes = row.dram_bytes},
            std::string(row.name),
            row.sm_count};
}

std::vector<int> known_numbers() {
    std::vector<int> numbers;
    for (const Row& row : kTable) numbers.push_back(row.sm);
    return numbers;
}

}  // namespace

int resident_ctas(const SmTraits& sm, int threads, int registers_per_thread, std::int64_t shared_bytes) {
    const int registers = (registers_per_thread + 7) / 8 * 8;
    const std::int64_t by_shared = sm.shared_bytes_per_sm / (shared_bytes + kReservedSharedBytes);
    const std::int64_t by_registers = sm.registers_per_sm / (registers * threads);
    const std::int64_t by_threads = sm.threads_per_sm / threads;
    return static_cast<int>(std::min({by_shared, by_registers, by_threads, std::int64_t{sm.ctas_per_sm}}));
}

std::vector<DeviceTraits> known_devices() {
    std::vector<DeviceTraits> devices;
    for (const Row& row : kTable) devices.push_back(traits_in(row));
    return devices;
}

DeviceTraits traits_of(int sm) {
    const auto found = std::ranges::find(kTable, sm, &Row::sm);
    if (found == std::end(kTable)) {
        throw InvalidRequest("sm", std::to_string(sm),
                             fmt::format("one of {}", fmt::join(known_numbers(), ", ")));
    }
    return traits_in(*found);
}

DeviceTraits traits_of_device(int sm, const std::string& name, int sm_count) {
    const Row* nearest = nullptr;
    for (const Row& row : kTable) {
        if (row.sm / 10 == sm / 10 && row.sm <= sm) nearest = &row;
    }
    if (nearest == nullptr) {
        throw Unsupported(
            fmt::format("{} has compute capability {}.{}, which no kernel supports (supported: {})", name,
                        sm / 10, sm % 10, fmt::join(known_numbers(), ", ")),
            {});
    }
    DeviceTraits traits = traits_in(*nearest);
    traits.name = name;
    traits.sm_count = sm_count;
    return traits;
}

}  // namespace attnsmith::families
