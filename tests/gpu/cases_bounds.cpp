// One Call for many batches: lengths change on the device after bind.
#include <fmt/format.h>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::PageList;

Case changing(const Case& base) {
    Case test = with_lengths(base, {64, 1, 100, 17}, {64, 300, 100, 40});
    test = with_lengths(test, {1, 1, 1, 1}, {1, 300, 2, 299});
    test = with_lengths(test, {0, 0, 100, 0}, {0, 9, 0, 300});
    test = with_lengths(test, {100, 100, 100, 100}, {300, 300, 300, 300});
    test = with_lengths(test, {0, 0, 0, 0}, {0, 0, 0, 0});
    test = with_lengths(test, {3, 70, 65, 1}, {128, 64, 65, 7});
    test.spec.lse = true;
    return test;
}

void add_changing(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        const Case base = causal(attention(dtype, 64, 4, 2));
        add(catalogue, "bounds", word(dtype) + " dense", changing(dense(base)));
        add(catalogue, "bounds", word(dtype) + " ragged", changing(ragged(base)));
        add(catalogue, "bounds", word(dtype) + " paged", changing(paged(base)));
        Case compressed = paged(base);
        compressed.page_list = PageList::compressed;
        add(catalogue, "bounds", word(dtype) + " compressed", changing(compressed));
        Case unbounded = changing(paged(base));
        unbounded.give_bounds = false;
        add(catalogue, "bounds", word(dtype) + " none given", unbounded);
        Case roomy = changing(paged(base));
        roomy.max_q_len = 1000;
        roomy.max_kv_len = 5000;
        roomy.slack = 700;
        add(catalogue, "bounds", word(dtype) + " far larger than the batch", roomy);
    }
    Case decode = paged(attention(DType::bf16, 128, 8, 2));
    for (const std::int64_t n : {5000, 1, 64, 4999, 0, 2048})
        decode = with_lengths(decode, {1, 1, 1}, {n, 5000 - n, 77});
    decode.spec.lse = decode.spec.sink = true;
    add(catalogue, "bounds", "decode that grows and shrinks", decode);
}

}  // namespace

void add_bounds(Catalogue& catalogue) { add_changing(catalogue); }

}  // namespace attnsmith::gpu_tests
