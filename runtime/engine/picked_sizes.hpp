// What a set's pick() found for sizes that it was asked before: planning takes hundreds of
// nanoseconds, a look-up about ten.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "attnsmith/spec.hpp"

namespace attnsmith::engine {

// Thread-safe without a lock: an entry is one word, which holds the sizes and the kernel. One that two sizes
// share has those that came last.
class PickedSizes {
  public:
    // The place of the kernel; nothing of sizes that are not kept, or no longer.
    std::optional<std::size_t> find(const PlanSizes& sizes) const {
        const std::optional<std::uint64_t> key = key_of(sizes);
        if (!key) return std::nullopt;
        const std::uint64_t word = entry(*key).load(std::memory_order_relaxed);
        if (word >> kKernelBits != *key || (word & kMostKernels) == 0) return std::nullopt;
        return (word & kMostKernels) - 1;
    }

    // Sizes or kernels that a word has no room for are not kept.
    void keep(const PlanSizes& sizes, std::size_t kernel) {
        const std::optional<std::uint64_t> key = key_of(sizes);
        if (key && kernel < kMostKernels)
            entry(*key).store(*key << kKernelBits | (kernel + 1), std::memory_order_relaxed);
    }

  private:
    static constexpr int kBatchBits = 12, kQueryBits = 20, kKeyBits = 24, kKernelBits = 8;
    static_assert(kBatchBits + kQueryBits + kKeyBits + kKernelBits == 64);
    static constexpr std::uint64_t kMostKernels = (std::uint64_t{1} << kKernelBits) - 1;
    static constexpr int kEntryBits = 12;

    static std::optional<std::uint64_t> key_of(const PlanSizes& sizes) {
        const auto batch = static_cast<std::uint64_t>(sizes.batch);  // below 0: above all
        const auto queries = static_cast<std::uint64_t>(sizes.q_len);
        const auto keys = static_cast<std::uint64_t>(sizes.kv_len);
        if (batch >> kBatchBits != 0 || queries >> kQueryBits != 0 || keys >> kKeyBits != 0)
            return std::nullopt;
        return (batch << kQueryBits | queries) << kKeyBits | keys;
    }

    // The golden ratio spreads consecutive keys over the table.
    std::atomic<std::uint64_t>& entry(std::uint64_t key) {
        return entries_[key * 0x9e3779b97f4a7c15ULL >> (64 - kEntryBits)];
    }
    const std::atomic<std::uint64_t>& entry(std::uint64_t key) const {
        return entries_[key * 0x9e3779b97f4a7c15ULL >> (64 - kEntryBits)];
    }

    std::array<std::atomic<std::uint64_t>, std::size_t{1} << kEntryBits> entries_{};
};

}  // namespace attnsmith::engine
