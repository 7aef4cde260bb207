// How the outputs of a launch are judged, over the stub driver: the reference's own values pass, and each
// change of them is found and named.
#include <fmt/format.h>

#include "check/compare_values.hpp"
#include "check/elements.hpp"
#include "check/output_writes.hpp"
#include "check/small_floats.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::check;
using attnsmith::test::contains;

namespace {

constexpr CompareOptions kCompareAll{.seed = 1, .threads = 1, .budget = 1e9};

Case padded_case(std::optional<DType> o_dtype) {
    Case test;
    test.group = "judging";
    test.spec = {.dtype = DType::bf16,
                 .head_dim_qk = 16,
                 .head_dim_vo = 8,
                 .q_heads = 4,
                 .kv_heads = 2,
                 .mask = Mask::causal,
                 .lse = true,
                 .kv = KvStorage::ragged,
                 .o_dtype = o_dtype};
    test.layout.o_pad = 8;
    Step step;
    step.q_lens = {3, 2};
    step.kv_lens = {40, 25};
    test.steps = {step};
    return test;
}

// A case whose outputs are what the reference says.
struct Judged {
    explicit Judged(std::optional<DType> o_dtype = {}) : Judged(padded_case(o_dtype)) {}

    explicit Judged(const Case& given) : test(given), storage(runtime(), test, 5) {
        storage.load(test.steps[0]);
        storage.poison_outputs();
        outputs = storage.read_outputs();
        const ReferenceInput input = storage.reference_input();
        const std::vector<QueryRow> rows = all_rows(input.sequences);
        const Reference want = compute_reference(input, rows, 1);
        std::size_t line = 0;
        for (const QueryRow& row : rows) {
            for (std::int64_t head = 0; head < 4; ++head, ++line) {
                for (std::int64_t d = 0; d < 8; ++d)
                    put(storage.o_element(row.sequence, row.query, head) + d,
                        want.out[line * 8 + static_cast<std::size_t>(d)]);
                store_at(outputs.lse, storage.lse_element(row.sequence, row.query, head),
                         static_cast<float>(want.lse[line]));
            }
        }
    }

    static const Runtime& runtime() {
        static const Runtime stub([] {
            RuntimeOptions options;
            options.driver_path = ATTNSMITH_FAKE_CUDA;
            options.use_cache = false;
            return options;
        }());
        return stub;
    }

    void put(std::int64_t element, double value) {
        if (output_dtype(test.spec) == DType::fp32)
            store_at(outputs.o, element, static_cast<float>(value));
        else
            store_at(outputs.o, element, encode(DType::bf16, value));
    }

    ComparedValues values() const {
        return compare_values(test, test.steps[0], storage, outputs, kCompareAll);
    }
    std::string rows() const { return badly_written_rows(test.spec, storage, outputs); }
    std::string outside() const { return written_outside_tensors(test.spec, storage, outputs); }

    Case test;
    Storage storage;
    Storage::Outputs outputs;
};

}  // namespace

TEST_CASE("the reference's own values are right, and written where they belong", "[check]") {
    for (const std::optional<DType> o_dtype : {std::optional<DType>(), std::optional(DType::fp32)}) {
        const Judged judged(o_dtype);
        const ComparedValues found = judged.values();
        CHECK(found.fault.empty());
        CHECK((found.compared == 5 && found.total == 5));
        CHECK((found.element_ratio <= 1 && found.pooled_ratio <= 1 && found.lse_ratio <= 1));
        CHECK((found.max_abs_error > 1e-5) == !o_dtype);  // one rounding to bf16
        CHECK(found.vacuous_pools == 0);
        CHECK(judged.rows().empty());
        CHECK(judged.outside().empty());
    }
}

TEST_CASE("keys and values of 8 bits are judged by what is stored, and heads of bad scales by NaN",
          "[check]") {
    Case test = padded_case({});
    test.spec.kv_dtype = DType::e4m3;
    test.spec.kv_scale = KvScale::head;
    const Judged good(test);
    CHECK(good.values().fault.empty());
    test.steps[0].spoil_scales = [](std::vector<float>& k, std::vector<float>&) { k[1] = -1; };
    test.steps[0].status.bits |= kStatusScaleNotPositive;
    const Judged bad(test);
    CHECK(bad.values().fault.empty());
    CHECK(contains(compare_values(test, test.steps[0], bad.storage, good.outputs, kCompareAll).fault,
                   "first [sequence 0, query 0, head 2, 0]"));
    // Only the rows of the KV head whose scale is spoiled may differ.
    CHECK(bad.outputs.o != good.outputs.o);
    const Storage::Outputs left = of_good_scales(test.spec, bad.storage, good.outputs);
    CHECK(left.o == of_good_scales(test.spec, bad.storage, bad.outputs).o);
    CHECK(left.lse == of_good_scales(test.spec, bad.storage, bad.outputs).lse);
    CHECK(left.o != good.outputs.o);
    CHECK(of_good_scales(test.spec, good.storage, good.outputs).o == good.outputs.o);
}

TEST_CASE("a value that is off is named by its place", "[check]") {
    Judged of_o;
    of_o.put(of_o.storage.o_element(1, 0, 2) + 3, 9.0);
    const ComparedValues wrong_o = of_o.values();
    CHECK(contains(wrong_o.fault,
                   "1 of 160 elements of o are wrong, first [sequence 1, query 0, head 2, 3] "
                   "(q_len 2, kv_len 25): got 9, want "));
    CHECK(wrong_o.element_ratio > 1);
    CHECK(wrong_o.lse_ratio <= 1);

    Judged of_lse;
    store_at(of_lse.outputs.lse, of_lse.storage.lse_element(0, 2, 1), 99.0f);
    const ComparedValues wrong_lse = of_lse.values();
    CHECK(contains(wrong_lse.fault,
                   "1 of 20 elements of lse are wrong, first [sequence 0, query 2, head 1] "
                   "(q_len 3, kv_len 40): got 99, want "));
    CHECK(wrong_lse.lse_ratio > 1);
    CHECK(wrong_lse.element_ratio <= 1);
}

TEST_CASE("a row that is not written, and a write outside of rows, are found", "[check]") {
    Judged missing;
    store_at(missing.outputs.o, missing.storage.o_element(0, 1, 3) + 7, kPoison);
    CHECK(contains(missing.rows(), "o[sequence 0, query 1, head 3]"));

    // Behind a head's elements comes padding, and behind the tensor a guard.
    Judged gap;
    store_at(gap.outputs.o, gap.storage.o_element(0, 0, 0) - 1, std::uint16_t{0});
    CHECK(contains(gap.rows(), "o was written outside its sequences, -1 elements from its first"));
    CHECK(contains(gap.outside(), "o was written outside its tensor, -1 elements from its first"));

    Judged lse;
    store_at(lse.outputs.lse, lse.storage.lse_place().first - 1, 1.0f);
    CHECK(contains(lse.rows(), "lse was written outside its sequences, -1 elements from its first"));
    CHECK(contains(lse.outside(), "lse was written outside its tensor, -1 elements from its first"));
}
