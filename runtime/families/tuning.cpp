#include "families/tuning.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "problem/request/spec_facts.hpp"

namespace attnsmith::families {
namespace {

template <class T>
bool admits(const std::optional<T>& required, const std::optional<T>& given) {
    return !required || required == given;
}

// A tile that is made for larger heads fits smaller ones.
bool serves(const TuningMatch& match, const TuningMatch& wanted) {
    return match.sm == wanted.sm && match.paged == wanted.paged && match.kv_bits == wanted.kv_bits &&
           match.head_dim_qk >= wanted.head_dim_qk && match.head_dim_vo >= wanted.head_dim_vo &&
           admits(match.mask, wanted.mask) && admits(match.dtype, wanted.dtype) &&
           admits(match.softcap, wanted.softcap) && admits(match.alibi, wanted.alibi) &&
           admits(match.gathered, wanted.gathered);
}

// Less is better.
auto rank(const TuningEntry& entry) {
    const TuningMatch& match = entry.match;
    const int open = !match.mask + !match.dtype + !match.softcap + !match.alibi + !match.gathered;
    // Among pairs that are as large, the one with less output comes first: its accumulators are what
    // registers are short of.
    return std::tuple(match.head_dim_qk + match.head_dim_vo, match.head_dim_vo,
                      entry.source != TileSource::user, open,
                      match.max_rows.value_or(std::numeric_limits<int>::max()));
}

}  // namespace

std::string_view to_string(TileSource source) {
    switch (source) {
        case TileSource::model:
            return "model";
        case TileSource::table:
            return "table";
        case TileSource::user:
            return "user";
    }
    return "?";
}

bool gathers(const AttentionSpec& spec) {
    constexpr int kLeastBox = 16;
    return spec.kv == KvStorage::paged && spec.page_size % kLeastBox != 0;
}

TuningMatch match_of(const AttentionSpec& spec, int sm) {
    TuningMatch match;
    match.sm = sm;
    match.head_dim_qk = static_cast<int>(spec.head_dim_qk);
    match.head_dim_vo = static_cast<int>(spec.head_dim_vo);
    match.paged = spec.kv == KvStorage::paged;
    match.kv_bits = static_cast<int>(8 * size_of(problem::kv_dtype(spec)));
    match.mask = mask_class(bounds_of(spec));
    match.dtype = spec.dtype;
    match.softcap = spec.softcap.has_value();
    match.alibi = spec.alibi;
    match.gathered = gathers(spec);
    return match;
}

std::vector<TuningEntry> TuningTable::entries_for(const TuningMatch& wanted) const {
    std::vector<TuningEntry> found;
    for (const std::span<const TuningEntry> entries : {std::span(loaded_), constants_}) {
        for (const TuningEntry& entry : entries) {
            if (serves(entry.match, wanted)) found.push_back(entry);
        }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return rank(a) < rank(b); });
    return found;
}

}  // namespace attnsmith::families
