// The tensors of a Batch, with what every op that binds one checks of them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "attnsmith/batch.hpp"
#include "problem/tensors/bound_shape.hpp"
#include "problem/tensors/tensor_checks.hpp"

namespace attnsmith::problem {

struct BatchTensors {
    // Both outlive it.
    BatchTensors(const AttentionSpec& spec, const Batch& batch);

    void check_index(const Named& named, Expected extent) const;
    // The sequences that offsets [batch + 1] are for.
    std::int64_t batch_of(const Named& indptr) const;
    // Paged KV, by a padded table or by compressed rows: checks them for shape.batch sequences and fills in
    // table_rows, page_list and max_kv_len. `lengths`: what kv_lens have to be, for messages.
    void check_pages(std::string_view lengths, BoundShape& shape) const;

    std::array<const Named*, 9> all() const;
    // Throws InvalidRequest where one of them is given, or one of these bounds. `owner`: what they belong to,
    // for messages.
    void refuse_all(std::int64_t max_q_len, std::int64_t max_kv_len, std::string_view owner) const;

    const AttentionSpec& spec;
    const Named q_indptr, q_lens, kv_indptr, kv_lens;
    const Named page_table, table_rows, page_indptr, page_indices, last_page_len;

  private:
    void check_padded_pages(std::string_view lengths, BoundShape& shape) const;
    void check_compressed_pages(BoundShape& shape) const;
};

}  // namespace attnsmith::problem
