// The shares that CTAs find of a launch's keys, by the kernels' own code, with a thread of the host for each
// thread of a CTA: every tile's units are done once, and what is done in parts is joined once, by the last.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "device/cta_threads.hpp"
#include "device/uncalled.hpp"
#include "support/catch.hpp"

// The headers under another name: mask_test.cpp compiles them with other stubs for the same program.
#define attnsmith attnsmith_of_shares
#define __device__
namespace {

void __threadfence() {}
int __ffs(unsigned bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return static_cast<T>(block->trade(static_cast<std::uint32_t>(value), [&](const std::uint32_t* lanes) {
        return lanes[std::max(lane - distance, 0)];
    }));
}
std::uint32_t __reduce_max_sync(unsigned, std::uint32_t value) {
    return block->trade(value,
                        [](const std::uint32_t* lanes) { return *std::max_element(lanes, lanes + 32); });
}
std::uint32_t atomicAdd(std::uint32_t* word, std::uint32_t value) {
    return std::atomic_ref(*word).fetch_add(value);
}
std::uint32_t atomicCAS(std::uint32_t* word, std::uint32_t expected, std::uint32_t value) {
    std::atomic_ref(*word).compare_exchange_strong(expected, value);
    return expected;
}
std::atomic<int> yields_of_sleep = 1;
void __nanosleep(unsigned) {
    for (int i = yields_of_sleep; i > 0; --i) std::this_thread::yield();
}
// How long CTAs wait for others, in a scope.
struct Patience {
    explicit Patience(int yields) { yields_of_sleep = yields; }
    ~Patience() { yields_of_sleep = 1; }
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;
};
}  // namespace
using std::max;
using std::min;
#include "attention/shares.cuh"
#undef attnsmith

namespace device = attnsmith_of_shares;

namespace {

struct Config {
    static constexpr bool absolute_cuts = false;
    using Index = std::int32_t;
    static constexpr bool paged = false, value_scale = true;
    static constexpr int tile_q = 16, tile_kv = 64,
                         head_dim_vo = 200;  // a tile's rows are several slices of a warp
};
constexpr int kTileQ = 16, kTileKv = 64;

struct Lengths {
    std::vector<int> q, kv;
};

// One launch, ragged: its sizes, its mask, and the words that its CTAs count in.
struct Launch {
    Lengths lengths{};
    int kv_heads = 1, group = 1;
    int window_left = -1, window_right = -1, chunk = 0;
    int ctas = 1;
    int least_share = 1;  // units; 0: keys are not divided
    int most_units = 1 << 30;
    int start_units = 0;
    int abreast = 1;  // lines of KV heads
    std::vector<std::uint32_t> words = std::vector<std::uint32_t>(device::abi::kZeroedBytes / 4);

    std::vector<std::int32_t> q_indptr{}, kv_lens{};

    device::abi::AttentionArguments arguments() {
        device::abi::AttentionArguments args{};
        q_indptr.assign(1, 0);
        for (const int q : lengths.q) q_indptr.push_back(q_indptr.back() + q);
        kv_lens.assign(lengths.kv.begin(), lengths.kv.end());
        args.q_indptr = q_indptr.data();
        args.kv_lens = kv_lens.data();
        args.batch = static_cast<int>(lengths.q.size());
        args.q_heads = kv_heads * group;
        args.kv_heads = kv_heads;
        args.group = device::abi::divisor_of(group);
        args.max_q_len = *std::ranges::max_element(lengths.q);
        args.max_kv_len = *std::ranges::max_element(lengths.kv);
        args.q_tokens = q_indptr.back();
        args.bounds = {window_left < 0 ? device::abi::kUnbounded : window_left,
                       window_right < 0 ? device::abi::kUnbounded : window_right,
                       device::abi::divisor_of(chunk), device::abi::divisor_of(0)};
        args.splits = 1;
        args.least_share = least_share;
        args.most_units = most_units;
        args.start_units = start_units;
        args.tiles = tiles_bound();
        args.sequence_tiles = args.tiles == args.batch * longest_tiles() ? longest_tiles() : 0;
        args.status = words.data();
        return args;
    }
    // As the host counts them.
    int tiles_bound() const {
        const auto all = std::accumulate(lengths.q.begin(), lengths.q.end(), 0);
        const int batch = static_cast<int>(lengths.q.size());
        return std::min(batch * longest_tiles(), all * group / kTileQ + batch);
    }
    int longest_tiles() const { return (*std::ranges::max_element(lengths.q) * group + kTileQ - 1) / kTileQ; }
};

struct Part {
    int first, end, units, place, cta;
};
using Tile = std::tuple<int, int, int>;  // batch, KV head, first row

// One after the other, in any order: a tile's last is not the one with its last keys. Or beside each other,
// so that they join rows together.
enum class Ctas { in_turn, beside };

struct Found {
    std::map<Tile, std::vector<Part>> tiles;
    std::map<std::tuple<int, int, int>, std::vector<std::pair<int, std::vector<std::int64_t>>>> joins;
    std::vector<int> order;  // of the CTAs, where they come in turn
    Ctas ctas = Ctas::in_turn;
};

// Who goes through a share once it is found: all threads of a CTA, or one warp of it.
enum class By { block, warp };

// What a thread is told of its CTA's share.
struct Told {
    std::vector<std::pair<Tile, Part>> works;
    std::vector<device::JoinedRow> rows;  // that it has joined
};

// A thread of the CTA that blockIdx names, whose threads share `state`.
template <int Warps, By Who>
void go_through_share(const device::abi::AttentionArguments& args, int abreast,
                      device::abi::ShareState& state, Told& told) {
    constexpr unsigned kThreads = Warps * 32, kTakers = Who == By::block ? kThreads : 32;
    const auto done = [&](const device::TileWork& work) {
        told.works.push_back({{work.sequence.batch, work.kv_head, work.first_row},
                              {work.part.first, work.part.end, work.part.units, work.part.place,
                               static_cast<int>(blockIdx.x)}});
        if (work.part.is_whole()) return;
        const device::QueryTile tile{args, work.sequence, work.kv_head, work.first_row, kTileQ};
        const device::TileParts parts(work.part, state.share, abreast);
        device::joined_rows.clear();
        const auto joiners = device::joiners_of<kTakers>(
            state.slices[0], [] { Who == By::block ? __syncthreads() : __syncwarp(); });
        device::join_rows<Config, 16>(tile, parts, work.part, parts.first, 0, joiners);
        std::ranges::copy(device::joined_rows, std::back_inserter(told.rows));
    };
    __syncthreads();
    if (threadIdx.x == 0) std::memset(static_cast<void*>(&state), 0x5a, sizeof state);  // another CTA's
    __syncthreads();
    device::uint32 status = 0;
    device::TileWork work;
    if constexpr (Who == By::block) {
        device::Shares<Config, kThreads> shares(args, state, kTileQ, abreast);
        while (shares.next(work, status)) done(work);
    } else {
        device::Shares<Config, kThreads>(args, state, kTileQ, abreast).begin(status);
        __syncthreads();
        device::Shares<Config, 32> shares(args, state, kTileQ, abreast);
        while (threadIdx.x < 32 && shares.take_by_warp(work)) done(work);
    }
    device::report(args, status);
}

template <int Warps, By Who>
Found run(Launch& launch, std::mt19937& random, Ctas ctas = Ctas::in_turn) {
    constexpr unsigned kThreads = Warps * 32, kTakers = Who == By::block ? kThreads : 32;
    const device::abi::AttentionArguments args = launch.arguments();
    const auto count = static_cast<std::size_t>(launch.ctas);
    Found found;
    found.ctas = ctas;
    found.order.resize(count);
    std::iota(found.order.begin(), found.order.end(), 0);
    std::ranges::shuffle(found.order, random);
    gridDim.x = static_cast<unsigned>(launch.ctas);
    const std::size_t at_once = ctas == Ctas::beside ? count : 1;
    std::vector<std::unique_ptr<Block>> blocks;
    for (std::size_t i = 0; i < at_once; ++i) blocks.push_back(std::make_unique<Block>(kThreads));
    std::vector<device::abi::ShareState> states(at_once);
    std::vector<std::vector<Told>> told(count, std::vector<Told>(kThreads));
    const auto body = [&](std::size_t beside, unsigned thread) {
        block = blocks[beside].get();
        threadIdx.x = thread;
        for (std::size_t i = beside; i < count; i += at_once) {
            const int cta = found.order[i];
            blockIdx.x = static_cast<unsigned>(cta);
            go_through_share<Warps, Who>(args, launch.abreast, states[beside],
                                         told[static_cast<std::size_t>(cta)][thread]);
        }
    };
    {
        std::vector<std::jthread> started;
        for (std::size_t i = 0; i < at_once; ++i)
            for (unsigned thread = 0; thread < kThreads; ++thread) started.emplace_back(body, i, thread);
    }
    for (std::size_t cta = 0; cta < count; ++cta) {
        const std::vector<std::pair<Tile, Part>>& works = told[cta][0].works;
        for (unsigned thread = 0; thread < kTakers; ++thread) {
            // All threads that take a share are told the same.
            REQUIRE(told[cta][thread].works.size() == works.size());
            for (std::size_t i = 0; i < works.size(); ++i) {
                const auto& [tile, part] = told[cta][thread].works[i];
                const auto& [other, same] = works[i];
                REQUIRE(tile == other);
                REQUIRE(std::tie(part.first, part.end, part.units, part.place) ==
                        std::tie(same.first, same.end, same.units, same.place));
            }
            for (const device::JoinedRow& row : told[cta][thread].rows)
                found.joins[{row.batch, row.token, row.head}].push_back({static_cast<int>(cta), row.places});
        }
        for (const auto& [tile, part] : works) found.tiles[tile].push_back(part);
    }
    return found;
}

// What every launch promises.
void check(const Launch& launch, Found found) {
    std::map<int, int> units_of, parts_of;  // a CTA's
    std::set<int> places;
    std::size_t tiles = 0, joined = 0;
    long long all = 0;
    std::vector<int> turn(found.order.size());
    for (std::size_t i = 0; i < found.order.size(); ++i)
        turn[static_cast<std::size_t>(found.order[i])] = static_cast<int>(i);
    for (std::size_t b = 0; b < launch.lengths.q.size(); ++b) {
        const int rows = launch.lengths.q[b] * launch.group;
        for (int head = 0; head < launch.kv_heads; ++head) {
            for (int first = 0; first < rows; first += kTileQ) {
                ++tiles;
                CAPTURE(b, head, first);
                const auto at = found.tiles.find({static_cast<int>(b), head, first});
                REQUIRE(at != found.tiles.end());
                std::vector<Part>& parts = at->second;
                std::ranges::sort(parts, {}, &Part::first);
                const int units = parts[0].units;
                all += units;
                int next = 0, last = -1;
                for (std::size_t p = 0; p < parts.size(); ++p) {
                    REQUIRE(parts[p].units == units);
                    REQUIRE(parts[p].first == next);
                    REQUIRE(parts[p].end > next);
                    REQUIRE(parts[p].cta == parts[0].cta + static_cast<int>(p) * launch.abreast);
                    REQUIRE(parts[p].cta % launch.abreast == head % launch.abreast);
                    REQUIRE((parts[p].place < 0) == (parts.size() == 1));
                    next = parts[p].end;
                    units_of[parts[p].cta] += parts[p].end - parts[p].first;
                    last = std::max(last, turn[static_cast<std::size_t>(parts[p].cta)]);
                    if (parts.size() == 1) continue;
                    ++parts_of[parts[p].cta];
                    REQUIRE(places.insert(parts[p].place).second);
                    REQUIRE(parts[p].place % kTileQ == 0);
                    REQUIRE(parts[p].place + kTileQ <= 2 * launch.ctas * kTileQ);
                }
                REQUIRE(next == units);
                // Each row is joined once, after the last of its parts was done, from all of them in order.
                for (int row = first; row < std::min(first + kTileQ, rows); ++row) {
                    const auto joins = found.joins.find(
                        {static_cast<int>(b), row / launch.group, head * launch.group + row % launch.group});
                    REQUIRE((joins != found.joins.end()) == (parts.size() > 1));
                    if (parts.size() == 1) continue;
                    ++joined;
                    REQUIRE(joins->second.size() == 1);
                    const auto& [cta, from] = joins->second[0];
                    if (found.ctas == Ctas::in_turn) REQUIRE(turn[static_cast<std::size_t>(cta)] == last);
                    REQUIRE(from.size() == parts.size());
                    for (std::size_t p = 0; p < parts.size(); ++p)
                        REQUIRE(from[p] == parts[p].place + row - first);
                }
            }
        }
    }
    REQUIRE(found.tiles.size() == tiles);
    REQUIRE(found.joins.size() == joined);
    for (const auto& [cta, parts] : parts_of) REQUIRE(parts <= 2);
    if (launch.least_share > 0) {
        const long long places = all + static_cast<long long>(tiles) * launch.start_units;
        const long long ctas = launch.ctas / launch.abreast, of_line = places / launch.abreast;
        const long long even = std::max<long long>((of_line + ctas - 1) / ctas, launch.least_share);
        for (const auto& [cta, units] : units_of) REQUIRE(units <= even + 3);
    }
    // The words are as the next launch needs them.
    REQUIRE(std::ranges::count(launch.words, 0U) == std::ssize(launch.words));
}

template <int Warps = 1, By Who = By::block>
Found run_and_check(Launch launch, std::mt19937& random, Ctas ctas = Ctas::in_turn) {
    CAPTURE(launch.ctas, launch.least_share, launch.kv_heads, launch.group, launch.lengths.q,
            launch.lengths.kv);
    const Found found = run<Warps, Who>(launch, random, ctas);
    check(launch, found);
    return found;
}

int units_of(const Found& found, int batch) { return found.tiles.at({batch, 0, 0})[0].units; }

}  // namespace

TEST_CASE("shares of any lengths, over any number of CTAs, do each tile's keys once", "[device][shares]") {
    std::mt19937 random(20261123);
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
    for (int n = 0; n < 60; ++n) {
        Launch launch;
        const int batch = 1 + up_to(n % 4 == 0 ? 80 : 6);  // more than a CTA has threads, too
        for (int b = 0; b < batch; ++b) {
            launch.lengths.q.push_back(up_to(3) == 0 ? 0 : up_to(n % 3 == 0 ? 60 : 3));
            launch.lengths.kv.push_back(up_to(3) == 0 ? up_to(2) : up_to(2000));
        }
        launch.kv_heads = 1 + up_to(2);
        launch.group = 1 + up_to(4);
        launch.ctas = 1 + up_to(n % 2 ? 8 : 40);
        launch.least_share = 1 + up_to(3);
        if (up_to(2) == 0) launch.window_left = up_to(300);
        if (up_to(2) == 0) launch.window_right = 0;
        if (up_to(3) == 0) launch.chunk = 1 + up_to(500);
        if (up_to(3) == 0) launch.most_units = 1 + up_to(5);
        if (up_to(2) != 0) launch.start_units = up_to(6);
        if (n % 3 == 1) {
            launch.abreast = 2 + up_to(1);
            launch.kv_heads *= launch.abreast;
            launch.ctas += launch.abreast;
        }
        switch (n % 10) {
            case 0:
                run_and_check<3>(launch, random);
                break;
            case 1:
            case 2:
                run_and_check<2, By::warp>(launch, random);
                break;
            case 3:
            case 4:
            case 5:
                run_and_check<1, By::warp>(launch, random);
                break;
            default:
                run_and_check(launch, random);
        }
    }
}

TEST_CASE("one long sequence among many without keys is divided over all CTAs", "[device][shares]") {
    std::mt19937 random(3);
    for (const int batch : {1, 31, 33, 70}) {
        Launch launch{.ctas = 20};
        launch.lengths.q.assign(static_cast<std::size_t>(batch), 1);
        launch.lengths.kv.assign(static_cast<std::size_t>(batch), 0);
        launch.lengths.kv[static_cast<std::size_t>(batch / 2)] = 200 * kTileKv;
        const Found found = run_and_check(launch, random);
        CHECK(units_of(found, batch / 2) == 200);
        CHECK(found.tiles.at({batch / 2, 0, 0}).size() >=
              200u / (200u + static_cast<unsigned>(batch) + 19u) * 20u);
        CHECK(found.tiles.at({batch / 2, 0, 0}).size() > 10);
    }
}

TEST_CASE("equal lengths that CTAs divide evenly leave nothing to join", "[device][shares]") {
    std::mt19937 random(4);
    Launch launch{.kv_heads = 2, .group = 4, .ctas = 12};
    launch.lengths.q.assign(6, 1);
    launch.lengths.kv.assign(6, 1000);
    CHECK(run_and_check(launch, random).joins.empty());
    // Nor does a share that had to be a little longer for it, which fewer CTAs have.
    launch.ctas = 13;
    const Found found = run_and_check(launch, random);
    CHECK(found.joins.empty());
}

TEST_CASE("where keys are not divided every tile has a CTA", "[device][shares]") {
    std::mt19937 random(5);
    for (const bool uniform : {true, false}) {
        Launch launch{.kv_heads = 2, .group = 2, .least_share = 0};
        for (int b = 0; b < 40; ++b) {
            launch.lengths.q.push_back(uniform ? 20 : b * 7 % 30);
            launch.lengths.kv.push_back(b * 31);
        }
        launch.ctas = launch.tiles_bound() * launch.kv_heads;
        for (const auto& [tile, parts] : run_and_check(launch, random).tiles) REQUIRE(parts.size() == 1);
    }
}

TEST_CASE("CTAs beside each other join the rows of tiles that they share, each row once",
          "[device][shares]") {
    std::mt19937 random(8);
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
    int together = 0;
    // On a machine with much other work CTAs meet when they wait for longer.
    for (int n = 0; n < 40 || (together == 0 && n < 200); ++n) {
        const Patience patience(n % 4 == 0 ? 1 : n < 40 ? 5 : 1000);
        Launch launch;
        for (int b = 0; b < 1 + up_to(2); ++b) {
            launch.lengths.q.push_back(1 + up_to(20));
            launch.lengths.kv.push_back(up_to(3) == 0 ? up_to(2) : 600 + up_to(2500));
        }
        launch.kv_heads = 1 + up_to(1);
        launch.group = 1 + up_to(7);
        launch.ctas = 2 + up_to(6);
        const Found found = n % 2 ? run_and_check(launch, random, Ctas::beside)
                                  : run_and_check<1, By::warp>(launch, random, Ctas::beside);
        std::map<Tile, std::set<int>> joiners;
        for (const auto& [row, joins] : found.joins) {
            const auto& [batch, token, head] = row;
            const int packed = token * launch.group + head % launch.group;
            joiners[{batch, head / launch.group, packed / kTileQ * kTileQ}].insert(joins[0].first);
        }
        for (const auto& [tile, ctas] : joiners) together += ctas.size() > 1;
    }
    CHECK(together > 0);
}

TEST_CASE("CTAs that wait for each other's parts take each slice of the rows once", "[device][shares]") {
    std::mt19937 random(7);
    const auto up_to = [&](unsigned most) { return static_cast<int>(random() % (most + 1)); };
    for (int n = 0; n < 300; ++n) {
        const int count = 2 + up_to(10), slices = 1 + up_to(12);
        const Patience patience(n % 3 == 0 ? 1 : 100);
        std::vector<std::uint32_t> words(device::abi::kZeroedBytes / 4);
        device::abi::AttentionArguments args{};
        args.status = words.data();
        std::atomic<int> arrived = 0;
        std::vector<std::atomic<int>> taken(static_cast<std::size_t>(slices));
        std::atomic<bool> too_early = false;
        const auto cta = [&](bool waits, int delay) {
            device::TileParts parts;
            parts.first = 3;
            parts.count = count;
            for (int i = 0; i < delay; ++i) std::this_thread::yield();
            ++arrived;
            int slice = parts.arrive(args, parts.first, slices, waits);
            while (slice >= 0) {
                if (arrived != count) too_early = true;
                ++taken[static_cast<std::size_t>(slice)];
                slice = slices == 1 ? -1 : parts.next_slice(args, parts.first, slices);
            }
        };
        {
            std::vector<std::jthread> ctas;
            for (int i = 0; i < count; ++i) ctas.emplace_back(cta, up_to(3) != 0, up_to(40));
        }
        CAPTURE(count, slices);
        REQUIRE_FALSE(too_early);
        for (const auto& times : taken) REQUIRE(times == 1);
        REQUIRE(std::ranges::count(words, 0U) == std::ssize(words));
    }
}

// A word below the number of a tile's CTAs may be the launch's own, so that such garbage is not among these.
TEST_CASE("counters that a launch does not find zero are reported", "[device][shares]") {
    std::mt19937 random(6);
    for (const std::uint32_t garbage : {0x07070707U, 0xffffffffU, 0x00030005U, 0x80000000U}) {
        CAPTURE(garbage);
        Launch launch{.lengths = {{1}, {4000}}, .ctas = 5};
        std::fill(launch.words.begin() + device::abi::kArrivals, launch.words.end(), garbage);
        run<1, By::block>(launch, random);
        CHECK(launch.words[0] == device::abi::kStatusWorkspaceNotZeroed);
    }
}
