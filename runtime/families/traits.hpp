// What planning needs to know of a GPU. Two kinds of facts: those that follow from the compute capability
// alone, which the kernel set may depend on, and those of one product (SM count, name), which only the choice
// within it may. Source: CUDA C++ Programming Guide, "Compute Capabilities"; products' data sheets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnsmith::families {

// What follows from the compute capability.
struct SmTraits {
    int sm = 0;  // 90 for compute capability 9.0

    std::int64_t shared_bytes_per_block = 0;  // with opt-in
    std::int64_t shared_bytes_per_sm = 0;
    int registers_per_sm = 65536;  // of 32 bits
    int threads_per_sm = 0;
    int ctas_per_sm = 0;

    // Rates for ranking, per SM and clock: rough ones do, since only ratios count.
    int mma_flops = 0;    // dense 16-bit mma.sync with fp32 accumulation
    int wgmma_flops = 0;  // likewise of wgmma; 0: the SM has none
    int dram_bytes = 0;   // device memory

    bool operator==(const SmTraits&) const = default;
};

// CTAs that an SM holds, by everything that is scarce.
int resident_ctas(const SmTraits& sm, int threads, int registers_per_thread, std::int64_t shared_bytes);

struct DeviceTraits : SmTraits {
    std::string name{};
    int sm_count = 0;

    bool operator==(const DeviceTraits&) const = default;
};

// Shared memory that each CTA takes on top of its own.
inline constexpr std::int64_t kReservedSharedBytes = 1024;

// Every SM of the table, with a typical product's SM count.
std::vector<DeviceTraits> known_devices();

// Throws InvalidRequest naming `sm` and listing the table.
DeviceTraits traits_of(int sm);

// The table's entry for a GPU that is present, with its own name and SM count. A compute capability that is
// newer than the table's within its major is planned as the nearest below it, whose cubins it runs. Throws
// Unsupported.
DeviceTraits traits_of_device(int sm, const std::string& name, int sm_count);

}  // namespace attnsmith::families
