// The tensors that are bound, as the copy engine gets to know them: through the stub driver, whose maps are
// records of what it was given.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "abi/attention_persistent.h"
#include "engine/fake_runtime.hpp"
#include "engine/tensor_maps.hpp"
#include "families/attention_arguments.hpp"
#include "ops/operands.hpp"
#include "planner/launch.hpp"
#include "planner/launch_facts.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

using Numbers = std::vector<std::uint64_t>;

struct Map {
    std::uint64_t address;
    Numbers extents, strides, box;
};

Map decode(const abi::TensorMap& words) {
    fake_cuda_tensor_map map;
    std::memcpy(&map, &words, sizeof map);
    return {map.address,
            {map.extents, map.extents + map.rank},
            {map.strides, map.strides + (map.rank > 0 ? map.rank - 1 : 0)},
            {map.box, map.box + map.rank}};
}

// Boxes are as of any other map: the kernel counts the bytes that they bring.
void check_empty(const Map& map, std::uint64_t address, const Numbers& box) {
    CHECK(map.address == address);
    CHECK(map.extents[0] == 8);
    CHECK(std::count(map.extents.begin() + 1, map.extents.end(), 1U) == std::ssize(box) - 1);
    CHECK(map.strides == Numbers(box.size() - 1, 16));
    CHECK(map.box == box);
}

AttentionSpec spec_of(std::int64_t q_heads, std::int64_t kv_heads) {
    return {.dtype = DType::bf16, .head_dim_qk = 128, .q_heads = q_heads, .kv_heads = kv_heads};
}

struct Bound {
    families::KernelConfig kernel;
    test::LaunchFacts launch;
    abi::PersistentArguments arguments;
    Map q, k, v;
};

Bound bind(const AttentionSpec& spec, const AttentionTensors& tensors, const Batch& batch) {
    static const auto api = driver::Api::open(ATTNSMITH_FAKE_CUDA);
    const planner::Plan plan = planner::make_plan(problem::validate(spec, {8, 4096, 4096}),
                                                  families::traits_of(90), planner::repository_tuning());
    REQUIRE(plan.kernel(planner::Role::attention).backend() == families::Backend::wgmma);
    const problem::Operands operands = problem::Operands::of(tensors, batch);
    const problem::BoundShape shape = ops::check_operands(plan.problem, operands);
    const planner::Launch launch = planner::launch_of(plan, shape);
    const families::Binding binding{operands, at(9, DType::int32, {1}).data};
    const families::LaunchContext context = planner::context_of(plan, shape, launch);
    const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
    families::Bound arguments = kernel.family->bind(kernel, context, binding);
    engine::encode_maps(*api, 0, arguments);
    Bound bound{kernel, test::launch_facts(plan, shape), {}, {}, {}, {}};
    REQUIRE(arguments.arguments.bytes().size() == sizeof bound.arguments);
    std::memcpy(&bound.arguments, arguments.arguments.data(), sizeof bound.arguments);
    abi::AttentionArguments divided =
        families::attention_arguments(context, binding, bound.launch.schedule.tiles);
    divided.kv_heads *= bound.arguments.kv_head_shares;
    divided.group = bound.arguments.attention.group;
    families::set_share(context, kernel.tile_kv(), bound.launch.schedule.items, divided);
    CHECK(std::memcmp(&bound.arguments.attention, &divided, sizeof divided) == 0);
    bound.q = decode(bound.arguments.q), bound.k = decode(bound.arguments.k),
    bound.v = decode(bound.arguments.v);
    return bound;
}

AttentionTensors dense(std::int64_t batch, std::int64_t q_len, std::int64_t q_heads, std::int64_t kv_len,
                       std::int64_t kv_heads) {
    return {.q = at(1, DType::bf16, {batch, q_len, q_heads, 128}),
            .k = at(2, DType::bf16, {batch, kv_len, kv_heads, 128}),
            .v = at(3, DType::bf16, {batch, kv_len, kv_heads, 128}),
            .o = at(4, DType::bf16, {batch, q_len, q_heads, 128})};
}

}  // namespace

TEST_CASE("keys that were widened ahead are those of the workspace, whatever the caller's are",
          "[engine][wgmma][widen]") {
    AttentionSpec spec = spec_of(32, 8);
    spec.kv_dtype = DType::e4m3;
    AttentionTensors tensors = dense(2, 300, 32, 1000, 8);
    tensors.k = at(2, DType::e4m3, {2, 1000, 8, 128});
    tensors.v = at(3, DType::e4m3, {2, 1000, 8, 128});
    const Bound bound = bind(spec, tensors, {});
    REQUIRE(bound.kernel.family->needs(bound.kernel, families::Role::widen));
    const auto workspace = reinterpret_cast<std::uint64_t>(at(9, DType::int32, {1}).data);
    CHECK(bound.k.address > workspace);
    CHECK(bound.v.address >= bound.k.address + 2 * 1000 * 8 * 128 * 2);
    for (const Map* map : {&bound.k, &bound.v}) {
        CHECK(map->extents == Numbers{128, 1000, 8, 2});
        CHECK(map->strides == Numbers{8 * 256, 256, 1000 * 8 * 256});
        CHECK(map->box[1] == static_cast<std::uint64_t>(bound.kernel.tile_kv()));
    }
}

TEST_CASE("a dense batch has maps of its tensors, whatever their strides", "[engine][wgmma]") {
    AttentionTensors tensors = dense(3, 100, 8, 300, 2);
    tensors.q.strides = {200000, 1032, 136, 1};
    tensors.k = at(2, DType::bf16, {3, 2, 304, 128}).permute({0, 2, 1, 3}).slice(1, 2, 302);
    const Bound bound = bind(spec_of(8, 2), tensors, {});
    CHECK(bound.arguments.warpgroup_tokens == 16);
    CHECK(bound.arguments.box_keys == bound.kernel.tile_kv());
    CHECK(bound.q.address == 0x1000000);
    CHECK(bound.q.extents == Numbers{128, 8, 100, 3});
    CHECK(bound.q.strides == Numbers{272, 2064, 400000});
    CHECK(bound.q.box == Numbers{64, 4, 16, 1});
    CHECK(bound.k.address == 0x2000000 + 2 * 256);
    CHECK(bound.k.extents == Numbers{128, 300, 2, 3});
    CHECK(bound.k.strides == Numbers{256, 304 * 256, 2 * 304 * 256});
    CHECK(bound.k.box == Numbers{64, static_cast<std::uint64_t>(bound.kernel.tile_kv()), 1, 1});
    CHECK(bound.v.address == 0x3000000);
    CHECK(bound.v.strides == Numbers{512, 256, 300 * 512});
}

TEST_CASE("the head dims of k and v may differ", "[engine][wgmma]") {
    AttentionSpec spec = spec_of(8, 2);
    spec.head_dim_qk = 192;
    spec.head_dim_vo = 128;
    spec.dtype = DType::fp16;
    const Bound bound = bind(spec,
                             {.q = at(1, DType::fp16, {1, 10, 8, 192}),
                              .k = at(2, DType::fp16, {1, 20, 2, 192}),
                              .v = at(3, DType::fp16, {1, 20, 2, 128}),
                              .o = at(4, DType::fp16, {1, 10, 8, 128})},
                             {});
    CHECK(bound.q.extents[0] == 192);
    CHECK(bound.k.extents[0] == 192);
    CHECK(bound.v.extents[0] == 128);
}

TEST_CASE("ragged tensors are one sequence to the copy engine", "[engine][wgmma]") {
    AttentionSpec spec = spec_of(8, 2);
    spec.kv = KvStorage::ragged;
    const Bound bound = bind(spec,
                             {.q = at(1, DType::bf16, {1000, 8, 128}),
                              .k = at(2, DType::bf16, {5000, 2, 128}),
                              .v = at(3, DType::bf16, {2, 5000, 128}).permute({1, 0, 2}),
                              .o = at(4, DType::bf16, {1000, 8, 128})},
                             {.q_indptr = at(5, DType::int32, {6}),
                              .kv_indptr = at(6, DType::int32, {6}),
                              .max_q_len = 300,
                              .max_kv_len = 2000});
    CHECK(bound.q.extents == Numbers{128, 8, 1000, 1});
    CHECK(bound.q.strides == Numbers{256, 2048, 16});
    CHECK(bound.k.extents == Numbers{128, 5000, 2, 1});
    CHECK(bound.k.strides == Numbers{512, 256, 16});
    CHECK(bound.v.strides == Numbers{256, 5000 * 256, 16});
}

TEST_CASE("pages take the place of sequences, in either order", "[engine][wgmma]") {
    for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
        for (const std::int64_t page_size : {16, 48, 256}) {
            AttentionSpec spec = spec_of(8, 2);
            spec.kv = KvStorage::paged;
            spec.page_order = order;
            spec.page_size = page_size;
            const auto pages = [&](int place) {
                return order == PageOrder::NHD ? at(place, DType::bf16, {90, page_size, 2, 128})
                                               : at(place, DType::bf16, {90, 2, page_size, 128});
            };
            const Bound bound =
                bind(spec,
                     {.q = at(1, DType::bf16, {3, 100, 8, 128}),
                      .k = pages(2),
                      .v = pages(3),
                      .o = at(4, DType::bf16, {3, 100, 8, 128})},
                     {.kv_lens = at(5, DType::int32, {3}), .page_table = at(6, DType::int32, {3, 30})});
            const auto keys = static_cast<std::uint64_t>(page_size);
            CHECK(bound.arguments.box_keys == std::gcd(page_size, std::int64_t{bound.kernel.tile_kv()}));
            CHECK(bound.k.extents == Numbers{128, keys, 2, 90});
            CHECK(bound.k.strides == (order == PageOrder::NHD ? Numbers{512, 256, keys * 512}
                                                              : Numbers{256, keys * 256, keys * 512}));
            CHECK(bound.k.box == Numbers{64, static_cast<std::uint64_t>(bound.arguments.box_keys), 1, 1});
            CHECK(bound.v.extents == bound.k.extents);
        }
    }
}

TEST_CASE("a warpgroup of seven heads a token has 9 tokens", "[engine][wgmma]") {
    const Bound bound = bind(spec_of(28, 4), dense(2, 100, 28, 200, 4), {});
    REQUIRE(bound.kernel.tile_q() == 128);
    CHECK(bound.arguments.warpgroup_tokens == 9);
    CHECK(bound.q.extents == Numbers{128, 28, 100, 2});
    CHECK(bound.q.strides == Numbers{256, 28 * 256, 100 * 28 * 256});
    CHECK(bound.q.box == Numbers{64, 7, 9, 1});
}

TEST_CASE("parts of a group are KV heads to the kernel, and share one of k and v", "[engine][wgmma]") {
    Bound bound = bind(spec_of(96, 2), dense(2, 100, 96, 200, 2), {});
    REQUIRE(bound.kernel.tile_q() == 128);
    CHECK(bound.arguments.kv_head_shares == 3);
    CHECK(bound.arguments.attention.kv_heads == 6);
    CHECK(bound.arguments.attention.group == 16);
    CHECK(bound.arguments.attention.tiles == 2 * 13);  // of 8 tokens
    CHECK(bound.arguments.draws == 2 * 13 * 6);
    CHECK(bound.arguments.warpgroup_tokens == 4);
    CHECK(bound.q.extents == Numbers{128, 96, 100, 2});
    CHECK(bound.q.strides == Numbers{256, 96 * 256, 100 * 96 * 256});
    CHECK(bound.q.box == Numbers{64, 16, 4, 1});
    CHECK(bound.k.extents == Numbers{128, 200, 2, 2});
    CHECK(bound.v.extents == Numbers{128, 200, 2, 2});

    // The last part of each group has 11 heads of 12 places.
    bound = bind(spec_of(142, 2), dense(2, 100, 142, 200, 2), {});
    CHECK(bound.arguments.kv_head_shares == 6);
    CHECK(bound.arguments.attention.q_heads == 142);
    CHECK(bound.arguments.attention.kv_heads == 12);
    CHECK(bound.arguments.attention.group == 12);
    CHECK(bound.arguments.warpgroup_tokens == 5);
    CHECK(bound.q.extents == Numbers{128, 142, 100, 2});
    CHECK(bound.q.strides == Numbers{256, 142 * 256, 100 * 142 * 256});
    CHECK(bound.q.box == Numbers{64, 12, 5, 1});
    CHECK(bound.k.extents == Numbers{128, 200, 2, 2});

    // Few queries have the fewest tiles where the group stays whole.
    bound = bind(spec_of(96, 2), dense(2, 2, 96, 200, 2), {});
    CHECK(bound.arguments.kv_head_shares == 1);
    CHECK(bound.q.box == Numbers{64, 48, 1, 1});
}

TEST_CASE("an axis may be expanded, and one of extent 1 has any stride", "[engine][wgmma]") {
    AttentionTensors tensors = dense(4, 100, 1, 300, 1);
    tensors.q.strides[2] = -3;
    tensors.k.strides[0] = 0;
    tensors.k.strides[2] = std::int64_t{1} << 60;
    const Bound bound = bind(spec_of(1, 1), tensors, {});
    CHECK(bound.arguments.warpgroup_tokens == 64);
    CHECK(bound.q.strides == Numbers{16, 256, 100 * 256});
    CHECK(bound.k.strides == Numbers{256, 16, 0});
}

TEST_CASE("a tensor without elements has a map of 16 bytes of q", "[engine][wgmma]") {
    AttentionTensors tensors = dense(2, 100, 8, 0, 2);
    tensors.k.data = tensors.v.data = nullptr;
    const Bound bound = bind(spec_of(8, 2), tensors, {});
    CHECK(bound.q.extents == Numbers{128, 8, 100, 2});
    for (const Map& map : {bound.k, bound.v})
        check_empty(map, 0x1000000, {64, static_cast<std::uint64_t>(bound.kernel.tile_kv()), 1, 1});
}

TEST_CASE("latents have a map with the position's columns, or one for each", "[engine][wgmma][mla]") {
    AttentionSpec spec{.op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128};
    spec.scale = 0.1;
    AttentionTensors tensors{.q = at(1, DType::bf16, {2, 3, 128, 576}),
                             .k = at(2, DType::bf16, {2, 300, 576}),
                             .o = at(4, DType::bf16, {2, 3, 128, 512})};
    const Bound together = bind(spec, tensors, {});
    CHECK(together.arguments.kv_head_shares == 2);
    CHECK(together.q.extents == Numbers{576, 128, 3, 2});
    CHECK(together.q.box == Numbers{64, 64, 1, 1});
    CHECK(together.v.extents == Numbers{576, 300, 1, 2});
    CHECK(together.v.box == Numbers{64, 64, 1, 1});
    CHECK(together.k.extents.empty());
    CHECK(decode(together.arguments.q_pe).extents.empty());

    tensors.q = at(1, DType::bf16, {2, 3, 128, 512}), tensors.q_pe = at(5, DType::bf16, {2, 3, 128, 64});
    tensors.k = at(2, DType::bf16, {2, 300, 512}), tensors.kpe = at(6, DType::bf16, {2, 300, 64});
    const Bound apart = bind(spec, tensors, {});
    CHECK(apart.q.extents == Numbers{512, 128, 3, 2});
    CHECK(decode(apart.arguments.q_pe).extents == Numbers{64, 128, 3, 2});
    CHECK(apart.v.extents == Numbers{512, 300, 1, 2});
    CHECK(apart.k.address == 0x6000000);
    CHECK(apart.k.extents == Numbers{64, 300, 1, 2});

    // A launch may give an address even to a tensor without elements, and the kernel then asks its map.
    tensors.k = at(2, DType::bf16, {2, 0, 512}), tensors.kpe = at(6, DType::bf16, {2, 0, 64});
    tensors.k.data = tensors.kpe.data = nullptr;
    const Bound empty = bind(spec, tensors, {});
    for (const Map& map : {empty.k, empty.v}) check_empty(map, 0x1000000, {64, 64, 1, 1});
}

TEST_CASE("without queries there is nothing to launch and no map", "[engine][wgmma]") {
    AttentionTensors tensors = dense(2, 0, 8, 100, 2);
    tensors.q.data = tensors.o.data = nullptr;
    const Bound bound = bind(spec_of(8, 2), tensors, {});
    for (const Map& map : {bound.q, bound.k, bound.v}) CHECK(map.extents.empty());
}

TEST_CASE("a stride that no map has is refused by its tensor's axis", "[engine][wgmma]") {
    constexpr std::int64_t kFar = std::int64_t{1} << 39;
    AttentionTensors tensors = dense(2, 100, 8, 300, 2);
    tensors.k.strides[0] = kFar;
    InvalidRequest error = refused([&] { bind(spec_of(8, 2), tensors, {}); });
    CHECK(error.field() == "k.strides[0]");
    CHECK(error.value() == std::to_string(kFar));
    CHECK(contains(error.accepted(), "alignment 8"));
    tensors.k.strides[0] = kFar - 8;
    CHECK(bind(spec_of(8, 2), tensors, {}).k.strides[2] == (std::uint64_t{1} << 40) - 16);
    tensors = dense(2, 100, 8, 300, 2);
    tensors.q.strides[2] = kFar;
    error = refused([&] { bind(spec_of(8, 2), tensors, {}); });
    CHECK(error.field() == "q.strides[2]");
    CHECK(error.value() == std::to_string(kFar));
}

TEST_CASE("the kernel draws tiles as they were launched", "[engine][wgmma]") {
    AttentionSpec spec = spec_of(8, 2);
    const Bound few = bind(spec, dense(2, 100, 8, 300, 2), {});
    CHECK(few.launch.schedule.tiles.of_each == 4);  // 100 tokens of 4 heads in tiles of 128 rows
    CHECK(few.arguments.attention.sequence_tiles == 4);
    CHECK(few.arguments.draws == 16);
    CHECK(few.arguments.paired_draws == 0);
    CHECK(few.arguments.mixed_streams == 1);

    spec.mask = Mask::causal;
    const Bound many = bind(spec, dense(8, 1000, 8, 1000, 2), {});
    CHECK(many.arguments.attention.sequence_tiles == 32);
    CHECK(many.arguments.draws == many.launch.schedule.draws);
    CHECK(many.arguments.paired_draws == many.launch.schedule.paired_draws);
    CHECK(many.arguments.paired_draws > 0);
    CHECK(many.arguments.mixed_streams == many.launch.schedule.mixed_streams);

    // The tiles of sequences that may be as long as the longest are bounded by the tokens that there are.
    spec.kv = KvStorage::ragged;
    const Bound packed = bind(spec,
                              {.q = at(1, DType::bf16, {1000, 8, 128}),
                               .k = at(2, DType::bf16, {1000, 2, 128}),
                               .v = at(3, DType::bf16, {1000, 2, 128}),
                               .o = at(4, DType::bf16, {1000, 8, 128})},
                              {.q_indptr = at(5, DType::int32, {6}),
                               .kv_indptr = at(6, DType::int32, {6}),
                               .max_q_len = 900,
                               .max_kv_len = 900});
    CHECK(packed.arguments.attention.tiles == 1000 / 32 + 5);
    CHECK(packed.arguments.attention.sequence_tiles == 0);
    CHECK(packed.arguments.draws == packed.launch.schedule.draws);
    CHECK(packed.launch.items == 36 * 2);
}

TEST_CASE("weights may reach 2 to the 8th before a row's exponents are moved", "[engine][wgmma]") {
    AttentionSpec spec = spec_of(8, 2);
    AttentionTensors tensors = dense(2, 100, 8, 300, 2);
    const auto reach = [&] {
        const abi::PersistentArguments arguments = bind(spec, tensors, {}).arguments;
        return std::exp2(arguments.slack * arguments.attention.scale_log2);
    };
    CHECK(std::abs(reach() - 256.0F) < 0.01F);
    spec.scale = 2.5;
    CHECK(std::abs(reach() - 256.0F) < 0.01F);
    // These make logits of what they transform before the softmax, which then does not scale.
    spec.softcap = 30.0;
    CHECK(std::abs(reach() - 256.0F) < 0.01F);
    CHECK(std::abs(bind(spec, tensors, {}).arguments.slack - 8.0 * std::log(2.0)) < 1e-5);
}
