#include "check/output_writes.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "check/elements.hpp"

namespace attnsmith::check {
namespace {

// Element number of the first value in the image that is not `poison`; -1 where there is none.
template <typename T>
std::int64_t first_not(const std::vector<std::byte>& bytes, T poison) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T))
        if (std::memcmp(bytes.data() + at, &poison, sizeof(T)) != 0)
            return static_cast<std::int64_t>(at / sizeof(T));
    return -1;
}

// Each element becomes poison again.
template <typename T>
void erase_tensor(std::vector<std::byte>& image, const Place& place, T poison) {
    const auto extent = [&](int axis) {
        return axis < place.rank ? place.shape[static_cast<std::size_t>(axis)] : 1;
    };
    for (std::int64_t a = 0; a < extent(0); ++a)
        for (std::int64_t b = 0; b < extent(1); ++b)
            for (std::int64_t c = 0; c < extent(2); ++c)
                for (std::int64_t d = 0; d < extent(3); ++d)
                    store_at(image, place.at(a, b, c) + d * (place.rank > 3 ? place.strides[3] : 0), poison);
}

// A row of one head becomes poison again.
void erase_row(const AttentionSpec& spec, const Storage& storage, Storage::Outputs& outputs,
               const QueryRow& row, std::int64_t head) {
    const std::int64_t first = storage.o_element(row.sequence, row.query, head);
    with_poison(output_dtype(spec), [&](auto poison) {
        for (std::int64_t d = 0; d < head_dim_vo(spec); ++d) store_at(outputs.o, first + d, poison);
    });
    if (spec.lse) store_at(outputs.lse, storage.lse_element(row.sequence, row.query, head), kPoisonF32);
}

std::string first_write(const AttentionSpec& spec, const Storage& storage, const Storage::Outputs& outputs,
                        const char* outside) {
    std::string found;
    with_poison(output_dtype(spec), [&](auto poison) {
        if (const auto at = first_not(outputs.o, poison); at >= 0)
            found = fmt::format("o was written outside {}, {} elements from its first", outside,
                                at - storage.o_place().first);
    });
    if (!found.empty()) return found;
    if (const auto at = first_not(outputs.lse, kPoisonF32); at >= 0)
        found = fmt::format("lse was written outside {}, {} elements from its first", outside,
                            at - storage.lse_place().first);
    return found;
}

}  // namespace

std::string written_outside_tensors(const AttentionSpec& spec, const Storage& storage,
                                    Storage::Outputs outputs) {
    with_poison(output_dtype(spec), [&](auto poison) { erase_tensor(outputs.o, storage.o_place(), poison); });
    if (spec.lse) erase_tensor(outputs.lse, storage.lse_place(), kPoisonF32);
    return first_write(spec, storage, outputs, "its tensor");
}

std::string badly_written_rows(const AttentionSpec& spec, const Storage& storage, Storage::Outputs outputs) {
    if (std::string row = storage.unwritten(outputs); !row.empty()) return row;
    for (const QueryRow& row : all_rows(storage.reference_input().sequences))
        for (std::int64_t head = 0; head < spec.q_heads; ++head) erase_row(spec, storage, outputs, row, head);
    return first_write(spec, storage, outputs, "its sequences");
}

Storage::Outputs of_good_scales(const AttentionSpec& spec, const Storage& storage, Storage::Outputs outputs) {
    const std::int64_t group = spec.q_heads / kv_heads(spec);
    for (const QueryRow& row : all_rows(storage.reference_input().sequences))
        for (std::int64_t head = 0; head < spec.q_heads; ++head)
            if (!storage.has_good_scales(row, head / group)) erase_row(spec, storage, outputs, row, head);
    return outputs;
}

}  // namespace attnsmith::check
