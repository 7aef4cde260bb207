#include "problem/tensors/batch_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "problem/limits.hpp"

namespace attnsmith::problem {

BatchTensors::BatchTensors(const AttentionSpec& of, const Batch& batch)
    : spec(of),
      q_indptr{"batch.q_indptr", batch.q_indptr},
      q_lens{"batch.q_lens", batch.q_lens},
      kv_indptr{"batch.kv_indptr", batch.kv_indptr},
      kv_lens{"batch.kv_lens", batch.kv_lens},
      page_table{"batch.page_table", batch.page_table},
      table_rows{"batch.table_rows", batch.table_rows},
      page_indptr{"batch.page_indptr", batch.page_indptr},
      page_indices{"batch.page_indices", batch.page_indices},
      last_page_len{"batch.last_page_len", batch.last_page_len} {}

void BatchTensors::check_index(const Named& named, Expected extent) const {
    check_vector(named, spec.index_dtype, extent);
}

std::int64_t BatchTensors::batch_of(const Named& indptr) const {
    check_index(indptr, {kAny, "batch + 1"});
    if (indptr.extent(0) == 0) refuse(indptr.at("shape", 0), "0", "batch + 1");
    return indptr.extent(0) - 1;
}

void BatchTensors::check_pages(std::string_view lengths, BoundShape& shape) const {
    const bool compressed = page_indptr.present() || page_indices.present() || last_page_len.present();
    if (compressed)
        check_compressed_pages(shape);
    else
        check_padded_pages(lengths, shape);
    // Both factors are below 2^31, so the product fits.
    shape.max_kv_len = std::min(shape.page_list * spec.page_size, kMaxLength);
}

void BatchTensors::check_padded_pages(std::string_view lengths, BoundShape& shape) const {
    check_present(page_table,
                  "for paged KV, page_table with kv_lens, or page_indptr, page_indices and last_page_len");
    check_present(kv_lens, lengths);
    check_index(kv_lens, {shape.batch, "batch"});
    check_dtype(page_table, spec.index_dtype);
    const Expected rows = table_rows.present() ? Expected{kAny, "rows that table_rows may state"}
                                               : Expected{shape.batch, "batch"};
    check_shape(page_table, {rows, {kAny, "pages a sequence"}});
    check_memory(page_table, size_of(spec.index_dtype));
    check_inner_stride(page_table);
    shape.table_rows = page_table.extent(0);
    shape.page_list = page_table.extent(1);
    if (!table_rows.present()) return;
    check_index(table_rows, {shape.batch, "batch"});
    if (shape.batch > 0 && shape.table_rows == 0)
        refuse(page_table.at("shape", 0), "0", "1 or more: each sequence has one of the rows");
}

void BatchTensors::check_compressed_pages(BoundShape& shape) const {
    for (const Named* extra : {&page_table, &table_rows, &kv_lens})
        refuse_extra(*extra,
                     "pages by page_table and kv_lens, and here page_indptr, page_indices and "
                     "last_page_len say them");
    for (const Named* needed : {&page_indptr, &page_indices, &last_page_len})
        check_present(*needed, "page_indptr, page_indices and last_page_len together");
    check_index(page_indptr, {shape.batch + 1, "batch + 1"});
    check_index(last_page_len, {shape.batch, "batch"});
    check_index(page_indices, {kAny, "pages of all sequences"});
    shape.page_list = page_indices.extent(0);
}

std::array<const Named*, 9> BatchTensors::all() const {
    return {&q_indptr,   &q_lens,      &kv_indptr,    &kv_lens,      &page_table,
            &table_rows, &page_indptr, &page_indices, &last_page_len};
}

void BatchTensors::refuse_all(std::int64_t max_q_len, std::int64_t max_kv_len, std::string_view owner) const {
    for (const Named* named : all()) refuse_extra(*named, owner);
    for (const auto& [field, value] :
         {std::pair("batch.max_q_len", max_q_len), {"batch.max_kv_len", max_kv_len}})
        if (value != 0) refuse(field, std::to_string(value), fmt::format("0: it belongs to {}", owner));
}

}  // namespace attnsmith::problem
