// The kernel of op top_k by its own code, with a thread of the host for each thread of a CTA.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "device/cta_threads.hpp"
#include "support/catch.hpp"

// The headers under another name: other tests compile them with other stubs for the same program.
#define attnsmith attnsmith_of_top_k
#define __device__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
namespace {

int __popc(unsigned bits) { return std::popcount(bits); }
unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
int __shfl_down_sync(unsigned, int value, int distance) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return static_cast<int>(block->trade(static_cast<std::uint32_t>(value), [&](const std::uint32_t* lanes) {
        return lanes[std::min(lane + distance, 31)];
    }));
}
[[maybe_unused]] int __ffs(unsigned bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
template <class T>
[[maybe_unused]] T __shfl_up_sync(unsigned, T value, int) {
    return value;
}
int atomicAdd(std::int32_t* word, std::int32_t value) { return std::atomic_ref(*word).fetch_add(value); }

}  // namespace
using std::min;
#include "top_k/top_k.cuh"
namespace attnsmith {
char memory[sizeof(abi::TopKShared)];  // what a CTA's `extern __shared__` is
}
#undef attnsmith

namespace device = attnsmith_of_top_k;

namespace {

struct Config {
    using Index = std::int64_t;
};

struct Rows {
    int columns = 0, k = 0;
    std::vector<float> scores{};
    std::vector<std::int64_t> starts{}, ends{};
    std::vector<std::int32_t> indices{};
    std::uint32_t status = 0;

    std::size_t count() const { return starts.size(); }
    const float* row(std::size_t r) const { return scores.data() + r * static_cast<std::size_t>(columns); }

    void select() {
        indices.assign(count() * static_cast<std::size_t>(k) + 4, -77);
        const device::abi::TopKArguments arguments{.scores = scores.data(),
                                                   .row_starts = starts.data(),
                                                   .row_ends = ends.data(),
                                                   .indices = indices.data(),
                                                   .status = &status,
                                                   .scores_row_stride = columns,
                                                   .indices_row_stride = k,
                                                   .columns = columns,
                                                   .k = k};
        for (unsigned r = 0; r < count(); ++r) {
            std::memset(device::memory, 0x5a, sizeof device::memory);
            Block cta(device::abi::kTopKThreads);
            std::vector<std::jthread> threads;
            for (unsigned thread = 0; thread < device::abi::kTopKThreads; ++thread)
                threads.emplace_back([&, r, thread] {
                    threadIdx.x = thread, blockIdx.x = r, block = &cta;
                    device::top_k<Config>(arguments);
                });
        }
    }

    // The larger first, NaN last, of equal ones the lower column; then by column.
    std::vector<std::int32_t> wanted(std::size_t r) const {
        const std::int64_t first = std::clamp<std::int64_t>(starts[r], 0, columns);
        std::vector<std::int32_t> found(
            static_cast<std::size_t>(std::clamp<std::int64_t>(ends[r], first, columns) - first));
        std::iota(found.begin(), found.end(), static_cast<std::int32_t>(first));
        const float* const score = row(r);
        std::ranges::stable_sort(found, [&](std::int32_t a, std::int32_t b) {
            if (std::isnan(score[a]) || std::isnan(score[b]))
                return !std::isnan(score[a]) && std::isnan(score[b]);
            return score[a] > score[b];
        });
        found.resize(std::min(found.size(), static_cast<std::size_t>(k)));
        std::ranges::sort(found);
        found.resize(static_cast<std::size_t>(k), -1);
        return found;
    }
};

Rows random_rows(int columns, int k, int kind, std::mt19937& random) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                    kNaN = std::numeric_limits<float>::quiet_NaN();
    constexpr float kSpecials[] = {kInfinity, -kInfinity, kNaN, -kNaN, 0.0F, -0.0F, 1e-42F, -1e-42F};
    Rows rows{.columns = columns, .k = k};
    const auto draw = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
    for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < columns; ++c)
            rows.scores.push_back(kind == 0   ? std::normal_distribution<float>()(random)
                                  : kind == 1 ? static_cast<float>(draw(4) - 2)
                                              : kSpecials[draw(7)]);
        rows.starts.push_back(draw(columns));
        rows.ends.push_back(rows.starts.back() + draw(columns - static_cast<int>(rows.starts.back())));
    }
    rows.starts[0] = -3, rows.ends[0] = columns + 5;  // beyond the columns
    return rows;
}

}  // namespace

TEST_CASE("the kernel of top_k selects as a sort does", "[device][top_k]") {
    std::mt19937 random(7);
    for (const int columns : {0, 1, 257, 700})
        for (const int k : {0, 1, 300})
            for (const int kind : {0, 1, 2}) {
                Rows rows = random_rows(columns, k, kind, random);
                rows.select();
                INFO(columns << " columns, k " << k << ", scores of kind " << kind);
                for (std::size_t r = 0; r < rows.count(); ++r) {
                    const auto got = rows.indices.begin() + static_cast<std::ptrdiff_t>(r) * k;
                    REQUIRE(std::vector<std::int32_t>(got, got + k) == rows.wanted(r));
                }
                REQUIRE(
                    std::all_of(rows.indices.end() - 4, rows.indices.end(), [](int i) { return i == -77; }));
                REQUIRE(rows.status == device::abi::kStatusKeyClamped);
            }
}

#ifndef __SANITIZE_THREAD__  // it is a race, on purpose
// Another stream's business, but no reason to write anywhere else.
TEST_CASE("scores that change meanwhile move no write of top_k out of its row", "[device][top_k]") {
    std::mt19937 random(11);
    Rows rows = random_rows(700, 40, 0, random);
    rows.starts.assign(3, 0), rows.ends.assign(3, 700);
    std::atomic<bool> is_done = false;
    std::jthread writer([&] {
        for (unsigned n = 0; !is_done; ++n)
            std::atomic_ref(rows.scores[n % rows.scores.size()])
                .store(static_cast<float>(n * 2654435761U % 1000));
    });
    for (int n = 0; n < 5; ++n) {
        rows.select();
        REQUIRE(std::all_of(rows.indices.end() - 4, rows.indices.end(), [](int i) { return i == -77; }));
        for (const std::int32_t index : std::vector(rows.indices.begin(), rows.indices.end() - 4))
            REQUIRE((index == -77 || (index >= 0 && index < 700)));
    }
    is_done = true;
}
#endif
