#include "planner/device_traits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attnsmith/error.hpp"

namespace attnsmith::planner {
namespace {

const std::array<DeviceTraits, 10>& table() {
    static const std::array<DeviceTraits, 10> devices = {{
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
    }};
    return devices;
}

std::vector<int> known_numbers() {
    std::vector<int> numbers;
    for (const DeviceTraits& device : table()) numbers.push_back(device.sm);
    return numbers;
}

}  // namespace

std::span<const DeviceTraits> known_devices() { return table(); }

const DeviceTraits& traits_of(int sm) {
    const auto found =
        std::find_if(table().begin(), table().end(), [&](const auto& d) { return d.sm == sm; });
    if (found == table().end()) {
        throw InvalidRequest("sm", std::to_string(sm),
                             fmt::format("one of {}", fmt::join(known_numbers(), ", ")));
    }
    return *found;
}

DeviceTraits traits_of_device(int sm, const std::string& name, int sm_count) {
    const DeviceTraits* nearest = nullptr;
    for (const DeviceTraits& device : table()) {
        if (device.sm / 10 == sm / 10 && device.sm <= sm) nearest = &device;
    }
    if (nearest == nullptr) {
        throw Unsupported(
            fmt::format("{} has compute capability {}.{}, which no kernel supports (supported: {})", name,
                        sm / 10, sm % 10, fmt::join(known_numbers(), ", ")),
            {});
    }
    DeviceTraits traits = *nearest;
    traits.name = name;
    traits.sm_count = sm_count;
    return traits;
}

}  // namespace attnsmith::planner
