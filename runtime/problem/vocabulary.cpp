#include "problem/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "attnsmith/error.hpp"
#include "problem/built.hpp"

namespace attnsmith {
namespace problem {
namespace {

enum class Spelling : std::uint8_t { canonical, alias };

template <typename Enum>
struct Word {
    std::string_view name;
    Enum value;
    Spelling spelling = Spelling::canonical;
};

constexpr auto alias = Spelling::alias;

constexpr Word<Op> kOps[] = {
    {"attention", Op::attention}, {"mla", Op::mla}, {"merge", Op::merge}, {"append", Op::append}};

constexpr Word<DType> kDTypes[] = {
    {"fp16", DType::f16},        {"bf16", DType::bf16},          {"fp32", DType::f32},
    {"int32", DType::i32},       {"int64", DType::i64},          {"f16", DType::f16, alias},
    {"half", DType::f16, alias}, {"float16", DType::f16, alias}, {"bfloat16", DType::bf16, alias},
    {"f32", DType::f32, alias},  {"float32", DType::f32, alias}, {"i32", DType::i32, alias},
    {"i64", DType::i64, alias},
};

constexpr Word<Mask> kMasks[] = {{"full", Mask::full}, {"causal", Mask::causal}, {"none", Mask::full, alias}};

constexpr Word<KvStorage> kKvStorages[] = {
    {"dense", KvStorage::dense}, {"ragged", KvStorage::ragged}, {"paged", KvStorage::paged}};

constexpr Word<PageOrder> kPageOrders[] = {{"NHD", PageOrder::NHD},
                                           {"HND", PageOrder::HND},
                                           {"nhd", PageOrder::NHD, alias},
                                           {"hnd", PageOrder::HND, alias}};

constexpr Word<Precision> kPrecisions[] = {
    {"default", Precision::standard}, {"high", Precision::high}, {"standard", Precision::standard, alias}};

constexpr Word<Consistency> kConsistencies[] = {{"default", Consistency::standard},
                                                {"bitwise", Consistency::bitwise},
                                                {"standard", Consistency::standard, alias}};

constexpr DType kFloatDTypes[] = {DType::f16, DType::bf16};
constexpr DType kUnbuiltFloatDTypes[] = {DType::f32};
constexpr DType kIndexDTypes[] = {DType::i32, DType::i64};

constexpr int kSms[] = {80, 86, 87, 89, 90, 100, 103, 110, 120, 121};

// An enumerator that a caller made by a cast has no name; validate() refuses it.
template <typename Enum>
std::string_view name_of(std::span<const Word<Enum>> table, Enum value) {
    const auto found = std::ranges::find(table, value, &Word<Enum>::value);
    return found == table.end() ? "(not an enumerator)" : found->name;
}

template <typename Enum>
std::vector<std::string_view> canonical_names(std::span<const Word<Enum>> table) {
    std::vector<std::string_view> names;
    for (const Word<Enum>& word : table) {
        if (word.spelling == Spelling::canonical) names.push_back(word.name);
    }
    return names;
}

template <typename Enum>
Enum parse_word(std::span<const Word<Enum>> table, std::string_view field, std::string_view text) {
    const auto found = std::ranges::find(table, text, &Word<Enum>::name);
    if (found != table.end()) return found->value;
    throw InvalidRequest(std::string(field), quote(text), accepted_words(text, canonical_names(table)));
}

std::vector<std::string_view> dtype_names(std::span<const DType> dtypes) {
    std::vector<std::string_view> names;
    for (const DType dtype : dtypes) names.push_back(to_string(dtype));
    return names;
}

DType parse_dtype(std::span<const DType> accepted, std::string_view field, std::string_view text) {
    const auto found = std::ranges::find(kDTypes, text, &Word<DType>::name);
    if (found != std::end(kDTypes) && std::ranges::find(accepted, found->value) != accepted.end()) {
        return found->value;
    }
    throw InvalidRequest(std::string(field), quote(text), accepted_words(text, dtype_names(accepted)));
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before_previous(b.size() + 1);
    std::vector<std::size_t> previous(b.size() + 1);
    std::vector<std::size_t> current(b.size() + 1);
    std::iota(previous.begin(), previous.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        current[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                current[j] = std::min(current[j], before_previous[j - 2] + 1);
            }
        }
        before_previous = std::exchange(previous, current);
    }
    return previous[b.size()];
}

// "90" or "9.0", from the text's beginning, which is taken away; 0 where there is no such number. 9.0 is the
// name of the compute capability, 90 that of its target.
int take_sm_number(std::string_view& text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || text.front() == '-' || text.front() == '0') return 0;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with('.')) return number;
    if (text.size() < 2 || text[1] < '0' || text[1] > '9' || number > 99) return 0;
    number = number * 10 + (text[1] - '0');
    text.remove_prefix(2);
    return number;
}

// `sm` is 0 for what is no spelling of a number.
SmText spell_sm(std::string_view text) {
    std::string_view rest = text;
    if (rest.starts_with("sm")) rest.remove_prefix(rest.starts_with("sm_") ? 3 : 2);
    if (rest.empty()) return {};
    const int sm = take_sm_number(rest);
    const bool letters = std::ranges::all_of(rest, [](char c) { return c >= 'a' && c <= 'z'; });
    if (!letters || rest.size() > 1) return {};
    return {sm, rest == "a" && sm >= 90 ? std::string_view() : rest};
}

}  // namespace

Op parse_op(std::string_view field, std::string_view text) { return parse_word<Op>(kOps, field, text); }
DType parse_float_dtype(std::string_view field, std::string_view text) {
    const auto found = std::ranges::find(kDTypes, text, &Word<DType>::name);
    if (found != std::end(kDTypes)) check_built(found->value);
    return parse_dtype(kFloatDTypes, field, text);
}
void check_built(DType dtype) {
    if (std::ranges::find(kUnbuiltFloatDTypes, dtype) == std::end(kUnbuiltFloatDTypes)) return;
    throw Unsupported(
        fmt::format("tensors of {} are not built in this version of attnsmith; what is built is {}",
                    to_string(dtype), join_or(dtype_names(kFloatDTypes))),
        {});
}
DType parse_index_dtype(std::string_view field, std::string_view text) {
    return parse_dtype(kIndexDTypes, field, text);
}
Mask parse_mask(std::string_view field, std::string_view text) {
    return parse_word<Mask>(kMasks, field, text);
}
KvStorage parse_kv_storage(std::string_view field, std::string_view text) {
    return parse_word<KvStorage>(kKvStorages, field, text);
}
PageOrder parse_page_order(std::string_view field, std::string_view text) {
    return parse_word<PageOrder>(kPageOrders, field, text);
}
Precision parse_precision(std::string_view field, std::string_view text) {
    return parse_word<Precision>(kPrecisions, field, text);
}
Consistency parse_consistency(std::string_view field, std::string_view text) {
    return parse_word<Consistency>(kConsistencies, field, text);
}

std::vector<std::string_view> words_of(Words which) {
    switch (which) {
        case Words::op:
            return canonical_names<Op>(kOps);
        case Words::float_dtype:
            return dtype_names(kFloatDTypes);
        case Words::index_dtype:
            return dtype_names(kIndexDTypes);
        case Words::mask:
            return canonical_names<Mask>(kMasks);
        case Words::kv:
            return canonical_names<KvStorage>(kKvStorages);
        case Words::page_order:
            return canonical_names<PageOrder>(kPageOrders);
        case Words::precision:
            return canonical_names<Precision>(kPrecisions);
        case Words::consistency:
            return canonical_names<Consistency>(kConsistencies);
    }
    return {};
}

std::span<const int> known_sms() { return kSms; }

std::string known_sms_text() {
    std::string text;
    for (const int sm : kSms) text += (text.empty() ? "" : ", ") + std::to_string(sm);
    return text;
}

int check_sm(std::string_view field, std::int64_t sm) {
    const auto found = std::ranges::find(kSms, sm);
    if (found != std::end(kSms)) return *found;
    throw InvalidRequest(std::string(field), std::to_string(sm), "one of " + known_sms_text());
}

SmText parse_sm(std::string_view field, std::string_view text) {
    const SmText spelled = spell_sm(text);
    if (std::ranges::find(kSms, spelled.sm) != std::end(kSms)) return spelled;
    throw InvalidRequest(std::string(field), quote(text),
                         "one of " + known_sms_text() + ", also as sm_90, 9.0 or 90a");
}

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates) {
    constexpr std::size_t kLongestWord =
        64;  // anything longer is no misspelling, and would take long to compare
    if (word.empty() || word.size() > kLongestWord) return {};
    std::string_view nearest;
    std::size_t least = std::max<std::size_t>(2, word.size() / 2) + 1;
    for (const std::string_view candidate : candidates) {
        const std::size_t distance = edit_distance(word, candidate);
        if (distance < least && distance < candidate.size()) {
            least = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

std::string accepted_words(std::string_view given, std::span<const std::string_view> words) {
    std::string text = join_or(words);
    const std::string_view nearest = nearest_name(given, words);
    // Words are short: half of a word's letters would make "fp8" a misspelling of fp16.
    if (!nearest.empty() && edit_distance(given, nearest) <= std::max<std::size_t>(1, given.size() / 3))
        text += fmt::format(" (did you mean {}?)", nearest);
    return text;
}

std::string join_or(std::span<const std::string_view> words) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
        text += words[i];
    }
    return text;
}

std::string quote(std::string_view text) {
    constexpr std::size_t kMost = 60;
    const bool cut = text.size() > kMost;
    const nlohmann::json value = std::string(text.substr(0, kMost));
    // ensure_ascii and replace: half a character at the cut, or bytes that are no UTF-8, come out as escapes.
    std::string line = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (cut) line += "...";
    return line;
}

}  // namespace problem

std::string_view to_string(Op value) { return problem::name_of<Op>(problem::kOps, value); }
std::string_view to_string(DType value) { return problem::name_of<DType>(problem::kDTypes, value); }
std::string_view to_string(Mask value) { return problem::name_of<Mask>(problem::kMasks, value); }
std::string_view to_string(KvStorage value) {
    return problem::name_of<KvStorage>(problem::kKvStorages, value);
}
std::string_view to_string(PageOrder value) {
    return problem::name_of<PageOrder>(problem::kPageOrders, value);
}
std::string_view to_string(Precision value) {
    return problem::name_of<Precision>(problem::kPrecisions, value);
}
std::string_view to_string(Consistency value) {
    return problem::name_of<Consistency>(problem::kConsistencies, value);
}

}  // namespace attnsmith
