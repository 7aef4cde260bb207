// The harness of the GPU suite, over the stub driver, whose device memory is the host's: what a step puts
// where, and which kernels a case can name.
#include "check/storage.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "check/kernel_choice.hpp"
#include "check/small_floats.hpp"
#include "ops/operands.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::check;

namespace {

Runtime stub_runtime() {
    RuntimeOptions options;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    options.use_cache = false;
    return Runtime(options);
}

Case windowed_case(KvStorage kv) {
    Case test;
    test.group = "storage";
    test.spec.dtype = DType::bf16;
    test.spec.head_dim_qk = 16;
    test.spec.head_dim_vo = 8;
    test.spec.q_heads = 4;
    test.spec.kv_heads = 2;
    test.spec.mask = Mask::causal;
    test.spec.window_left = 9;
    test.spec.lse = true;
    test.spec.kv = kv;
    test.spec.page_size = kv == KvStorage::paged ? 4 : 0;
    test.q_storage = kv == KvStorage::dense ? QStorage::dense : QStorage::ragged;
    Step step;
    step.q_lens = {3, 1};
    step.kv_lens = {40, 25};
    test.steps = {step};
    return test;
}

using Row = std::vector<std::uint16_t>;

Row row_of(const RowAccessor& rows, std::int64_t s, std::int64_t t, std::int64_t h, std::size_t dim) {
    const auto* row = static_cast<const std::uint16_t*>(rows(s, t, h));
    return row ? Row(row, row + dim) : Row{};
}

bool is_nan(const Row& row) {
    return std::all_of(row.begin(), row.end(),
                       [](std::uint16_t x) { return std::isnan(decode(DType::bf16, x)); });
}

struct Snapshot {
    std::vector<Row> q, k, v;  // by sequence, token, head
};

Snapshot snapshot(const Storage& storage) {
    const ReferenceInput input = storage.reference_input();
    Snapshot all;
    for (std::int64_t s = 0; s < 2; ++s) {
        const auto& lengths = input.sequences[static_cast<std::size_t>(s)];
        for (std::int64_t t = 0; t < lengths.q; ++t)
            for (std::int64_t h = 0; h < 4; ++h) all.q.push_back(row_of(input.q, s, t, h, 16));
        for (std::int64_t t = 0; t < lengths.kv; ++t)
            for (std::int64_t h = 0; h < 2; ++h) {
                all.k.push_back(row_of(input.k, s, t, h, 16));
                all.v.push_back(row_of(input.v, s, t, h, 8));
            }
    }
    return all;
}

}  // namespace

TEST_CASE("evicted keys are NaN, and all others are those of the step before", "[check]") {
    for (const KvStorage kv : {KvStorage::dense, KvStorage::ragged, KvStorage::paged}) {
        const Runtime runtime = stub_runtime();
        const Case test = windowed_case(kv);
        Storage storage(runtime, test, 5);
        storage.load(test.steps[0]);
        const Snapshot before = snapshot(storage);
        Step again = test.steps[0];
        again.same_data = again.evicted = true;
        storage.load(again);
        const Snapshot after = snapshot(storage);
        CHECK(after.q == before.q);
        // The first query of 3 after 40 keys is at 37 and sees from 28; that of 25 keys sees from 15.
        std::size_t n = 0;
        for (const auto& [keys, first] : {std::pair{40, 28}, {25, 15}}) {
            for (int token = 0; token < keys; ++token) {
                for (int head = 0; head < 2; ++head, ++n) {
                    CHECK_FALSE(is_nan(before.k[n]));
                    CHECK((token < first ? is_nan(after.k[n]) : after.k[n] == before.k[n]));
                    CHECK((token < first ? is_nan(after.v[n]) : after.v[n] == before.v[n]));
                }
            }
        }
        storage.load(test.steps[0]);
        CHECK(snapshot(storage).q != before.q);  // fresh otherwise
        CHECK(storage.changed_input().empty());
    }
}

TEST_CASE("planted numbers stand where they were put", "[check]") {
    const Runtime runtime = stub_runtime();
    Case test = windowed_case(KvStorage::paged);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    test.steps[0].planted = {{Planted::Where::q, 0, 2, 3, 5, nan},
                             {Planted::Where::k, 1, 7, 1, 0, -HUGE_VAL},
                             {Planted::Where::v, 0, 39, -1, 4, HUGE_VAL}};
    Storage storage(runtime, test, 5);
    storage.load(test.steps[0]);
    const ReferenceInput input = storage.reference_input();
    const auto number = [](const void* row, std::size_t component) {
        return decode(DType::bf16, static_cast<const std::uint16_t*>(row)[component]);
    };
    CHECK(std::isnan(number(input.q(0, 2, 3), 5)));
    CHECK(std::isfinite(number(input.q(0, 2, 2), 5)));
    CHECK(number(input.k(1, 7, 1), 0) == -HUGE_VAL);
    CHECK(std::isfinite(number(input.k(1, 7, 0), 0)));
    for (std::int64_t head = 0; head < 2; ++head) CHECK(number(input.v(0, 39, head), 4) == HUGE_VAL);
}

namespace {

Case fp8_case(KvStorage kv, DType stored, KvScale scale) {
    Case test = windowed_case(kv);
    test.spec.head_dim_vo = 16;
    test.spec.kv_dtype = stored;
    test.spec.kv_scale = scale;
    return test;
}

// The stub's device memory is the host's.
const float* floats_of(const Tensor& tensor) { return static_cast<const float*>(tensor.data); }

std::uint8_t byte_of(const void* row, std::size_t component) {
    return static_cast<const std::uint8_t*>(row)[component];
}

}  // namespace

TEST_CASE("keys and values of 8 bits are those of 16 bits, quantised with their head's scale", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const KvStorage kv : {KvStorage::dense, KvStorage::ragged, KvStorage::paged}) {
        for (const DType stored : {DType::e4m3, DType::e5m2}) {
            for (const KvScale scale : {KvScale::none, KvScale::tensor, KvScale::head}) {
                const Case test = fp8_case(kv, stored, scale);
                Storage storage(runtime, test, 5);
                storage.load(test.steps[0]);
                const ReferenceInput input = storage.reference_input();
                const AttentionTensors tensors = storage.tensors();
                CHECK((tensors.k.dtype == stored && tensors.v.dtype == stored));
                CHECK(tensors.k_scale.rank == (scale == KvScale::none ? 0 : 1));
                REQUIRE((input.k_scales.size() == 2 && input.v_scales.size() == 2));
                CHECK((input.k_scales[0] == input.k_scales[1]) == (scale != KvScale::head));
                CHECK((input.k_scales[0] == 1) == (scale == KvScale::none));
                CHECK((input.k_scales[0] == input.v_scales[0]) == (scale == KvScale::none));
                for (std::size_t head = 0; head < 2 && scale == KvScale::head; ++head) {
                    CHECK(floats_of(tensors.k_scale)[head] == input.k_scales[head]);
                    CHECK(floats_of(tensors.v_scale)[head] == input.v_scales[head]);
                }
                // They are N(0, 1) whatever the scales are.
                double squares = 0;
                for (std::int64_t token = 0; token < 40; ++token)
                    for (std::int64_t head = 0; head < 2; ++head)
                        for (std::size_t d = 0; d < 16; ++d) {
                            const double key = decode(stored, byte_of(input.k(0, token, head), d)) *
                                               input.k_scales[static_cast<std::size_t>(head)];
                            squares += key * key / (40 * 2 * 16);
                        }
                CHECK((squares > 0.8 && squares < 1.2));
            }
        }
    }
}

TEST_CASE("slots that no sequence has are NaN in 8 bits, too", "[check]") {
    const Runtime runtime = stub_runtime();
    Case test = fp8_case(KvStorage::paged, DType::e4m3, KvScale::head);
    test.layout.pad = 4;
    test.layout.base = 1;
    Storage storage(runtime, test, 5);
    storage.load(test.steps[0]);
    const Tensor k = storage.tensors().k;
    CHECK(reinterpret_cast<std::uintptr_t>(k.data) % 4 == 2);
    for (int axis = 0; axis < 3; ++axis) CHECK(k.strides[static_cast<std::size_t>(axis)] % 8 == 0);
    std::int64_t numbers = 0;
    const auto* const bytes = static_cast<const std::uint8_t*>(k.data);
    for (std::int64_t at = 0; at < k.shape[0] * k.strides[0]; ++at)
        numbers += !std::isnan(decode(DType::e4m3, bytes[at]));
    CHECK(numbers == (40 + 25) * 2 * 16);
}

TEST_CASE("bytes stand for 8-bit floats, and a launch may have other scales than its Call", "[check]") {
    const Runtime runtime = stub_runtime();
    Case test = fp8_case(KvStorage::ragged, DType::e5m2, KvScale::head);
    test.layout.kv_as_bytes = true;
    test.scales_at_launch = true;
    test.k_scales = {0.5F, 2.0F};
    test.v_scales = {4.0F};
    Storage storage(runtime, test, 5);
    storage.load(test.steps[0]);
    const AttentionTensors tensors = storage.tensors();
    CHECK((tensors.k.dtype == DType::uint8 && tensors.v.dtype == DType::uint8));
    CHECK((std::isnan(floats_of(tensors.k_scale)[0]) && std::isnan(floats_of(tensors.v_scale)[1])));
    const TensorAddresses addresses = storage.addresses();
    CHECK((addresses.k_scale[0] == 0.5F && addresses.k_scale[1] == 2.0F));
    CHECK((addresses.v_scale[0] == 4.0F && addresses.v_scale[1] == 4.0F));
    CHECK(storage.changed_input().empty());
}

TEST_CASE("latents of 8 bits are keys and values with one scale, wherever their positions are", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const bool apart : {false, true}) {
        Case test = windowed_case(KvStorage::paged);
        test.spec.op = Op::mla;
        test.spec.kv_dtype = DType::e4m3;
        test.spec.kv_scale = KvScale::tensor;
        test.spec.head_dim_qk = test.spec.head_dim_vo = 0;
        test.spec.head_dim_ckv = 64, test.spec.head_dim_kpe = 16;
        test.spec.kv_heads = 1;
        test.layout.latents_apart = apart;
        test.layout.kv_as_bytes = true;
        Storage storage(runtime, test, 5);
        storage.load(test.steps[0]);
        const AttentionTensors tensors = storage.tensors();
        const ReferenceInput input = storage.reference_input();
        CHECK((tensors.k_scale.rank == 1 && tensors.v_scale.rank == 0));
        CHECK(input.k_scales == input.v_scales);
        const std::int64_t columns = apart ? 16 : 0;
        CHECK(tensors.k.shape[2] == (apart ? 64 : 80));
        CHECK((tensors.k.dtype == DType::uint8 && (!apart || tensors.kpe.dtype == DType::uint8)));
        const auto* const key = static_cast<const std::uint8_t*>(input.k(1, 24, 0));
        CHECK(input.v(1, 24, 0) == static_cast<const void*>(key + columns));
        // The stub's device memory is the host's: the token's slot in what is bound has the same bytes.
        const auto* const table = static_cast<const std::int32_t*>(storage.batch().page_table.data);
        const std::int64_t page = table[storage.batch().page_table.strides[0] + 24 / 4];
        const auto slot = [&](const Tensor& tensor) {
            return static_cast<const std::uint8_t*>(tensor.data) + page * tensor.strides[0] +
                   24 % 4 * tensor.strides[1];
        };
        CHECK(std::equal(key + columns, key + columns + 64, slot(tensors.k)));
        if (apart) CHECK(std::equal(key, key + 16, slot(tensors.kpe)));
    }
}

TEST_CASE("spoiled scales leave what is stored as it was, and are known by their heads", "[check]") {
    const Runtime runtime = stub_runtime();
    Case test = fp8_case(KvStorage::ragged, DType::e4m3, KvScale::head);
    Storage storage(runtime, test, 5);
    storage.load(test.steps[0]);
    const std::uint8_t before = byte_of(storage.reference_input().v(1, 24, 1), 15);
    CHECK((storage.has_good_scales(0) && storage.has_good_scales(1)));
    Step spoiled = test.steps[0];
    spoiled.same_data = true;
    spoiled.spoil_scales = [](std::vector<float>&, std::vector<float>& v) { v[1] = 0; };
    storage.load(spoiled);
    CHECK(byte_of(storage.reference_input().v(1, 24, 1), 15) == before);
    CHECK(floats_of(storage.tensors().v_scale)[1] == 0);
    CHECK((storage.has_good_scales(0) && !storage.has_good_scales(1)));
    storage.load(test.steps[0]);
    CHECK(storage.has_good_scales(1));
}

namespace {

// A scale as the tensors that are bound have it, by the place of a token in its storage.
float bound_scale(const Tensor& scales, std::int64_t a, std::int64_t b, std::int64_t c) {
    return floats_of(scales)[a * scales.strides[0] + b * scales.strides[1] + c * scales.strides[2]];
}

Case latents_in_blocks(bool inline_scales, bool apart) {
    Case test = windowed_case(KvStorage::paged);
    test.spec.op = Op::mla;
    test.spec.kv_dtype = DType::e4m3;
    test.spec.kv_scale = KvScale::block128;
    test.spec.head_dim_qk = test.spec.head_dim_vo = 0;
    test.spec.head_dim_ckv = 512, test.spec.head_dim_kpe = 64;
    test.spec.kv_heads = 1;
    test.spec.scale = 0.1;
    test.spec.window_left.reset();
    test.layout.inline_scales = inline_scales;
    test.layout.latents_apart = apart;
    return test;
}

}  // namespace

TEST_CASE("each token has scales of its own, in tensors of their own or behind its columns", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const KvStorage kv : {KvStorage::dense, KvStorage::ragged, KvStorage::paged}) {
        for (const bool behind : {false, true}) {
            for (const int alignment : {4, 16}) {
                INFO(to_string(kv) << (behind ? " behind" : "") << alignment);
                Case test = fp8_case(kv, DType::e4m3, KvScale::token_head);
                test.layout.inline_scales = behind;
                test.spec.alignment = alignment;
                test.layout.pad = 2 * alignment;
                test.layout.scale_pad = 1;
                test.layout.scales_transposed = alignment == 4;
                Storage storage(runtime, test, 5);
                storage.load(test.steps[0]);
                const AttentionTensors tensors = storage.tensors();
                const problem::Problem problem = problem::validate(test.spec, {});
                CHECK_NOTHROW(ops::check_operands(problem, problem::Operands::of(tensors, storage.batch())));
                if (behind)
                    CHECK(reinterpret_cast<const std::byte*>(tensors.k_scale.data) ==
                          static_cast<const std::byte*>(tensors.k.data) + 16);
                const ReferenceInput input = storage.reference_input();
                if (kv == KvStorage::dense)
                    CHECK(bound_scale(tensors.k_scale, 1, 7, 1) == input.k_scale(1, 7, 1, 0));
                // They are N(0, 1) whatever the scales are, which are spread over orders.
                double squares = 0;
                float least = 1e9F, most = 0;
                for (std::int64_t token = 0; token < 40; ++token)
                    for (std::int64_t head = 0; head < 2; ++head) {
                        const float scale = input.v_scale(0, token, head, 0);
                        least = std::min(least, scale), most = std::max(most, scale);
                        CHECK(scale != input.k_scale(0, token, head, 0));
                        for (std::size_t d = 0; d < 16; ++d) {
                            const double value =
                                decode(DType::e4m3, byte_of(input.v(0, token, head), d)) * double{scale};
                            squares += value * value / (40 * 2 * 16);
                        }
                    }
                CHECK((squares > 0.8 && squares < 1.2));
                CHECK((least > 0.01F && least < 0.06F && most > 1 && most < 4));
            }
        }
    }
}

TEST_CASE("scales of slots that no sequence has are NaN", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const bool behind : {false, true}) {
        Case test = fp8_case(KvStorage::paged, DType::e4m3, KvScale::token_head);
        test.layout.inline_scales = behind;
        Storage storage(runtime, test, 5);
        storage.load(test.steps[0]);
        const Tensor scales = storage.tensors().k_scale;
        std::int64_t numbers = 0;
        for (std::int64_t page = 0; page < scales.shape[0]; ++page)
            for (std::int64_t slot = 0; slot < scales.shape[1]; ++slot)
                for (std::int64_t head = 0; head < 2; ++head)
                    numbers += !std::isnan(bound_scale(scales, page, slot, head));
        CHECK(numbers == (40 + 25) * 2);
    }
}

TEST_CASE("latents with scales of blocks are rows of 656 bytes, or tensors of their own", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const bool behind : {false, true}) {
        for (const bool apart : {false, true}) {
            const Case test = latents_in_blocks(behind, apart);
            Storage storage(runtime, test, 5);
            storage.load(test.steps[0]);
            const AttentionTensors tensors = storage.tensors();
            const problem::Problem problem = problem::validate(test.spec, {});
            CHECK_NOTHROW(ops::check_operands(problem, problem::Operands::of(tensors, storage.batch())));
            CHECK((tensors.kpe.dtype == DType::bf16 && tensors.k_scale.shape[2] == 4));
            CHECK(static_cast<bool>(tensors.q_pe) == apart);
            if (behind) {
                CHECK((tensors.k.strides[1] == 656 && tensors.k_scale.strides[1] == 164));
                CHECK(tensors.kpe.strides[1] == 328);
                const auto* const row = static_cast<const std::byte*>(tensors.k.data);
                CHECK((tensors.k_scale.data == row + 512 && tensors.kpe.data == row + 528));
            }
            const ReferenceInput input = storage.reference_input();
            CHECK((input.scale_block == 128 && input.kpe_first == (apart ? 0 : 512)));
            double squares = 0;
            for (std::size_t d = 0; d < 512; ++d) {
                const double key = decode(DType::e4m3, byte_of(input.k(1, 24, 0), d)) *
                                   double{input.k_scale(1, 24, 0, static_cast<std::int64_t>(d) / 128)};
                squares += key * key / 512;
            }
            CHECK((squares > 0.7 && squares < 1.4));
            CHECK(input.k(1, 24, 0) == input.v(1, 24, 0));
            CHECK(input.v_scale(1, 24, 0, 3) == input.k_scale(1, 24, 0, 3));
            const auto* const position = static_cast<const std::uint16_t*>(input.kpe(1, 24, 0));
            for (int d = 0; d < 64; ++d) CHECK(std::abs(decode(DType::bf16, position[d])) < 6);
        }
    }
}

TEST_CASE("a token's spoiled scale is known by the rows that see it", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const bool behind : {false, true}) {
        Case test = fp8_case(KvStorage::ragged, DType::e4m3, KvScale::token_head);
        test.layout.inline_scales = behind;
        Storage storage(runtime, test, 5);
        storage.load(test.steps[0]);
        const std::uint8_t before = byte_of(storage.reference_input().v(0, 39, 1), 15);
        CHECK(storage.has_good_scales({0, 2}, 1));
        Step spoiled = test.steps[0];
        spoiled.same_data = true;
        spoiled.spoiled_scales = {{.of_key = false, .sequence = 0, .token = 39, .head = 1, .value = -2}};
        storage.load(spoiled);
        CHECK(byte_of(storage.reference_input().v(0, 39, 1), 15) == before);
        CHECK(storage.reference_input().v_scale(0, 39, 1, 0) == -2);
        // The last key is seen by the last query alone.
        CHECK((storage.has_good_scales({0, 2}, 0) && !storage.has_good_scales({0, 2}, 1)));
        CHECK(storage.has_good_scales({0, 1}, 1));
        CHECK(storage.has_good_scales({1, 0}, 1));
        storage.load(test.steps[0]);
        CHECK(storage.has_good_scales({0, 2}, 1));
    }
}

TEST_CASE("a launch may have other scales of tokens than its Call, in the same places", "[check]") {
    const Runtime runtime = stub_runtime();
    for (const bool behind : {false, true}) {
        Case test = fp8_case(KvStorage::dense, DType::e5m2, KvScale::token_head);
        test.layout.inline_scales = behind;
        test.scales_at_launch = true;
        test.k_scales = {0.5F, 2.0F};
        Storage storage(runtime, test, 5);
        storage.load(test.steps[0]);
        const AttentionTensors tensors = storage.tensors();
        CHECK(std::isnan(bound_scale(tensors.k_scale, 0, 3, 0)));
        Tensor given = tensors.k_scale;
        given.data = const_cast<float*>(storage.addresses().k_scale);
        CHECK((bound_scale(given, 0, 3, 0) == 2.0F && bound_scale(given, 0, 3, 1) == 0.5F));
        given = tensors.v_scale;
        given.data = const_cast<float*>(storage.addresses().v_scale);
        CHECK(bound_scale(given, 1, 3, 1) == storage.reference_input().v_scale(1, 3, 1, 0));
        CHECK(storage.changed_input().empty());
    }
}

TEST_CASE("outputs that nobody wrote are named", "[check]") {
    const Runtime runtime = stub_runtime();
    const Case test = windowed_case(KvStorage::ragged);
    Storage storage(runtime, test, 5);
    storage.load(test.steps[0]);
    storage.poison_outputs();
    Storage::Outputs outputs = storage.read_outputs();
    CHECK(storage.unwritten(outputs) == "o[sequence 0, query 0, head 0] was not written");
    std::fill(outputs.o.begin(), outputs.o.end(), std::byte{0});
    CHECK(storage.unwritten(outputs) == "lse[sequence 0, query 0, head 0] was not written");
    std::fill(outputs.lse.begin(), outputs.lse.end(), std::byte{0});
    CHECK(storage.unwritten(outputs).empty());
}

TEST_CASE("sinks and slopes that are given are taken in turn", "[check]") {
    const Runtime runtime = stub_runtime();
    Case test = windowed_case(KvStorage::ragged);
    test.spec.sink = test.spec.alibi = true;
    test.sinks = {1e4f, -1e4f, 0.5f};
    test.alibi_slopes = {-0.5f};
    const Storage storage(runtime, test, 5);
    CHECK(storage.reference_input().sinks == std::vector<float>{1e4f, -1e4f, 0.5f, 1e4f});
    CHECK(storage.reference_input().alibi_slopes == std::vector<float>(4, -0.5f));
}

TEST_CASE("a case can name every kernel that any SM's set has", "[check]") {
    for (const std::int64_t dim : {8, 64, 192, 256}) {
        for (const KvStorage kv : {KvStorage::ragged, KvStorage::paged}) {
            AttentionSpec spec;
            spec.head_dim_qk = dim;
            spec.head_dim_vo = dim == 192 ? 128 : dim;
            spec.q_heads = 4;
            spec.kv_heads = 2;
            spec.kv = kv;
            spec.page_size = kv == KvStorage::paged ? 16 : 0;
            const std::vector<KernelChoice> choices = kernel_choices(spec);
            for (const int sm : {80, 86, 89, 90, 120}) {
                for (const auto& kernel :
                     planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning())
                         .kernels()) {
                    if (kernel.family->role() != families::Role::attention) continue;
                    const auto same = [&](const KernelChoice& c) {
                        return c.tile_q == kernel.tile_q() && c.tile_kv == kernel.tile_kv() &&
                               c.stages == kernel.stages() && c.chunk == 0 &&
                               c.wgmma == (kernel.backend() == families::Backend::wgmma) &&
                               c.shares == (kernel.constants.integer("shares") != 0) && !c.widened_ahead;
                    };
                    CHECK(std::count_if(choices.begin(), choices.end(), same) == 1);
                }
            }
            for (const int tile_q : {16, 64, 128})
                CHECK(std::any_of(choices.begin(), choices.end(),
                                  [&](const KernelChoice& c) { return c.tile_q == tile_q; }));
        }
    }
}

TEST_CASE("sequences take their pages from the rows that table_rows states", "[check]") {
    const Runtime runtime = stub_runtime();
    Case test = windowed_case(KvStorage::paged);
    test.spare_table_rows = 3;
    test.steps.push_back(test.steps[0]);
    test.steps[1].spoil = [](IndexArrays& arrays) { arrays.table_rows[1] = arrays.table_rows[0]; };
    Storage storage(runtime, test, 5);
    const Batch batch = storage.batch();
    CHECK(batch.page_table.shape[0] == 5);
    REQUIRE(batch.table_rows.shape[0] == 2);
    storage.load(test.steps[0]);
    // The stub's device memory is the host's.
    const auto* const rows = static_cast<const std::int32_t*>(batch.table_rows.data);
    CHECK(rows[0] != rows[1]);
    for (int s = 0; s < 2; ++s) CHECK((rows[s] >= 0 && rows[s] < 5));
    CHECK(storage.reference_input().k(1, 20, 0) != nullptr);
    CHECK(storage.reference_input().k(0, 20, 0) != storage.reference_input().k(1, 20, 0));
    storage.load(test.steps[1]);
    CHECK(storage.reference_input().k(0, 20, 0) == storage.reference_input().k(1, 20, 0));
}
