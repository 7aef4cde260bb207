#include "problem/request/request_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/request/problem.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The fields that count for op merge.
constexpr std::string_view kMergeFields[] = {"op",      "dtype",  "head_dim",  "head_dim_vo",
                                             "q_heads", "lse",    "alignment", "batch",
                                             "q_len",   "kv_len", "sm"};

// Words of `sm`.
constexpr std::string_view kEverySm = "all";
constexpr std::string_view kPresentSm = "native";

std::int64_t as_integer(std::string_view field, const json& value) {
    const bool too_large =
        value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
    if (value.is_number_integer() && !too_large) return value.get<std::int64_t>();
    throw InvalidRequest(std::string(field), describe(value), "an integer");
}

// An integer whose absence has a meaning that 0 would share: 0 is a mistake, not a default.
std::int64_t as_given_count(std::string_view field, const json& value) {
    const std::int64_t count = as_integer(field, value);
    if (count != 0) return count;
    throw InvalidRequest(std::string(field), "0", "an integer from 1, or leave the field out");
}

double as_number(std::string_view field, const json& value) {
    if (value.is_number()) return value.get<double>();
    throw InvalidRequest(std::string(field), describe(value), "a number");
}

bool as_boolean(std::string_view field, const json& value) {
    if (value.is_boolean()) return value.get<bool>();
    throw InvalidRequest(std::string(field), describe(value), "true or false");
}

template <typename Enum>
Enum as_word(std::string_view field, const json& value, Enum (*parse)(std::string_view, std::string_view),
             Words which) {
    if (value.is_string()) return parse(field, value.get_ref<const std::string&>());
    throw InvalidRequest(std::string(field), describe(value), join_or(words_of(which)));
}

std::optional<std::int64_t> as_optional_integer(std::string_view field, const json& value) {
    if (value.is_null()) return std::nullopt;
    return as_integer(field, value);
}

std::optional<double> as_optional_number(std::string_view field, const json& value) {
    if (value.is_null()) return std::nullopt;
    return as_number(field, value);
}

// A C++ int, without wrapping a value that is out of its range into one that is accepted.
int as_alignment(std::string_view field, const json& value) {
    const std::int64_t alignment = as_integer(field, value);
    if (alignment >= 2 && alignment <= 16) return static_cast<int>(alignment);
    throw InvalidRequest(std::string(field), describe(value), "16, 8, 4 or 2 bytes");
}

void add_sm(std::vector<int>& sms, int sm) {
    if (std::ranges::find(sms, sm) == sms.end()) sms.push_back(sm);
}

// Calls `visit` with each part of "80,89,90a".
template <typename Visit>
void for_each_part(std::string_view text, Visit visit) {
    while (true) {
        const std::size_t comma = text.find(',');
        visit(text.substr(0, comma));
        if (comma == text.npos) return;
        text.remove_prefix(comma + 1);
    }
}

// "80,89,90a", "all" or "native": what one flag says.
void add_sm_text(std::vector<int>& sms, std::string_view text) {
    if (text == kEverySm) {
        for (const int sm : known_sms()) add_sm(sms, sm);
        return;
    }
    for_each_part(text, [&](std::string_view part) {
        if (part == kPresentSm) throw InvalidRequest("sm", quote(text), "native alone, not in a list");
        add_sm(sms, parse_sm("sm", part).sm);
    });
}

void add_sm_value(std::vector<int>& sms, const json& value) {
    if (value.is_string()) return add_sm_text(sms, value.get_ref<const std::string&>());
    if (value.is_number_integer()) return add_sm(sms, check_sm("sm", as_integer("sm", value)));
    throw InvalidRequest("sm", describe(value),
                         "a compute capability or a list of them, each one of " + known_sms_text());
}

void set_sm(AttentionRequest& request, std::string_view, const json& value) {
    request.sm.clear();
    if (value.is_null() || value == kPresentSm) return;
    if (!value.is_array()) return add_sm_value(request.sm, value);
    for (const json& item : value) add_sm_value(request.sm, item);
}

// REQUIRES: the op is set already; it is the table's first field.
void set_head_dim(AttentionRequest& request, std::string_view field, const json& value) {
    request.spec.head_dim_vo = as_integer(field, value);
    if (request.spec.op != Op::merge) request.spec.head_dim_qk = request.spec.head_dim_vo;
}

void set_op(AttentionRequest& request, std::string_view field, const json& value) {
    request.spec.op = as_word(field, value, parse_op, Words::op);
    check_built(request.spec.op);
}

// The field that a pointer to a member of AttentionSpec or PlanSizes names.
template <typename Class, typename Value>
Value& at(AttentionRequest& request, Value Class::*member) {
    if constexpr (std::is_same_v<Class, AttentionSpec>)
        return request.spec.*member;
    else
        return request.sizes.*member;
}

template <typename Class, typename Value>
const Value& at(const AttentionRequest& request, Value Class::*member) {
    return at(const_cast<AttentionRequest&>(request), member);
}

template <auto member, auto read>
void set(AttentionRequest& request, std::string_view field, const json& value) {
    at(request, member) = read(field, value);
}

template <auto member, auto parse, Words which>
void set_word(AttentionRequest& request, std::string_view field, const json& value) {
    at(request, member) = as_word(field, value, parse, which);
}

template <auto member>
ordered_json get(const AttentionRequest& request) {
    const auto& value = at(request, member);
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>)
        return to_string(value);
    else if constexpr (requires { value.has_value(); })
        return value ? ordered_json(*value) : nullptr;
    else
        return value;
}

using Spec = AttentionSpec;
using Sizes = PlanSizes;

constexpr RequestField flag_field(std::string_view name, FieldType type, std::string_view help,
                                  RequestField::Setter setter, RequestField::Getter getter) {
    return {name, type, help, std::nullopt, setter, getter};
}

template <auto member>
constexpr RequestField integer_field(std::string_view name, std::string_view help) {
    return flag_field(name, FieldType::integer, help, set<member, as_integer>, get<member>);
}

template <auto member>
constexpr RequestField count_field(std::string_view name, std::string_view help) {
    return flag_field(name, FieldType::integer, help, set<member, as_given_count>, get<member>);
}

template <auto member>
constexpr RequestField window_field(std::string_view name, std::string_view help) {
    return flag_field(name, FieldType::integer, help, set<member, as_optional_integer>, get<member>);
}

template <auto member>
constexpr RequestField factor_field(std::string_view name, std::string_view help) {
    return flag_field(name, FieldType::number, help, set<member, as_optional_number>, get<member>);
}

template <auto member>
constexpr RequestField boolean_field(std::string_view name, std::string_view help) {
    return flag_field(name, FieldType::boolean, help, set<member, as_boolean>, get<member>);
}

template <auto member, auto parse, Words which>
constexpr RequestField word_field(std::string_view name, std::string_view help) {
    return {name, FieldType::word, help, which, set_word<member, parse, which>, get<member>};
}

constexpr RequestField with_role(RequestField field, FieldRole role) {
    field.role = role;
    return field;
}

constexpr RequestField choice(const RequestField& field) { return with_role(field, FieldRole::choice); }
constexpr RequestField size(const RequestField& field) { return with_role(field, FieldRole::size); }

constexpr RequestField of_pages(RequestField field) {
    field.of_pages = true;
    return field;
}

ordered_json get_sm(const AttentionRequest& request) { return request.sm; }

constexpr RequestField kFields[] = {
    {"op", FieldType::word, "attention, or merge: joins its results over disjoint keys", Words::op, set_op,
     get<&Spec::op>},
    choice(word_field<&Spec::dtype, parse_float_dtype, Words::float_dtype>("dtype",
                                                                           "element type of q, k, v and o")),
    flag_field("head_dim", FieldType::integer,
               "head dimension of q, k, v and o: a multiple of 8 from 8 to 256", set_head_dim, nullptr),
    integer_field<&Spec::head_dim_qk>("head_dim_qk",
                                      "head dimension of q and k, where that of v and o differs"),
    count_field<&Spec::head_dim_vo>("head_dim_vo", "head dimension of v and o (default: that of q and k)"),
    integer_field<&Spec::q_heads>("q_heads", "query heads"),
    count_field<&Spec::kv_heads>("kv_heads", "key/value heads, a divisor of q_heads (default: q_heads)"),
    word_field<&Spec::mask, parse_mask, Words::mask>("mask",
                                                     "full, or causal: the last query sees the last key"),
    window_field<&Spec::window_left>(
        "window_left", "keys seen before the query's own (default: all); a sliding_window of W is W - 1"),
    window_field<&Spec::window_right>("window_right", "keys seen after the query's own (default: all)"),
    factor_field<&Spec::scale>("scale", "factor on q k^T (default 1/sqrt(head_dim_qk))"),
    factor_field<&Spec::softcap>("softcap", "logits become softcap * tanh(logit / softcap) (default: off)"),
    boolean_field<&Spec::alibi>("alibi", "add slope[q_head] * (key position - query position)"),
    boolean_field<&Spec::sink>("sink", "add exp(sink[q_head]) to each row's denominator"),
    choice(boolean_field<&Spec::lse>("lse", "also write the log-sum-exp of each row")),
    choice(word_field<&Spec::kv, parse_kv_storage, Words::kv>("kv", "how keys and values are stored")),
    of_pages(choice(word_field<&Spec::page_order, parse_page_order, Words::page_order>(
        "page_order", "order of a page's axes"))),
    of_pages(choice(integer_field<&Spec::page_size>("page_size", "tokens a page, of paged kv"))),
    choice(word_field<&Spec::index_dtype, parse_index_dtype, Words::index_dtype>(
        "index_dtype", "type of indptrs, lengths and page tables")),
    choice(flag_field("alignment", FieldType::integer,
                      "bytes that every base and stride is a multiple of: 16, 8, 4 or 2",
                      set<&Spec::alignment, as_alignment>, get<&Spec::alignment>)),
    choice(word_field<&Spec::precision, parse_precision, Words::precision>(
        "precision", "default, or high: probabilities stay in fp32")),
    choice(word_field<&Spec::consistency, parse_consistency, Words::consistency>(
        "consistency", "default, or bitwise: a row's bits depend on neither batch nor phase")),
    size(integer_field<&Sizes::batch>("batch", "sequences to plan for")),
    size(integer_field<&Sizes::q_len>("q_len", "queries of the longest sequence to plan for")),
    size(integer_field<&Sizes::kv_len>("kv_len", "keys of the longest sequence to plan for")),
    with_role(
        flag_field("sm", FieldType::sm_list,
                   "compute capabilities, e.g. 80,90; all, or native: the GPU that is present (the default)",
                   set_sm, get_sm),
        FieldRole::device),
};

// JSON's own grammar for numbers: no "0x10", no "nan", no leading "+".
bool looks_like_json_number(std::string_view text) {
    return text.find_first_not_of("0123456789+-.eE") == text.npos && json::accept(text.begin(), text.end());
}

bool is_integer_too_long(std::string_view text) {
    if (text.find_first_of(".eE") != text.npos) return false;
    std::int64_t value = 0;
    return std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc();
}

}  // namespace

std::span<const RequestField> request_fields() { return kFields; }

std::vector<std::string> unused_sm_suffixes(const json& value) {
    std::vector<std::string> unused;
    const auto add = [&](std::string_view text) {
        if (text == kEverySm || text == kPresentSm) return;
        for_each_part(text, [&](std::string_view part) {
            const SmText spelled = parse_sm("sm", part);
            if (spelled.unused.empty()) return;
            unused.push_back(
                fmt::format("sm {} is taken as {}: each kernel has the compile target that it needs, "
                            "and the suffix {} says nothing here",
                            quote(part), spelled.sm, quote(spelled.unused)));
        });
    };
    if (value.is_string()) add(value.get_ref<const std::string&>());
    if (value.is_array()) {
        for (const json& item : value)
            if (item.is_string()) add(item.get_ref<const std::string&>());
    }
    return unused;
}

bool counts(const RequestField& field, Op op) {
    return op != Op::merge || std::ranges::find(kMergeFields, field.name) != std::end(kMergeFields);
}

void refuse_other_fields(const AttentionRequest& request) {
    const AttentionRequest defaults;
    for (const RequestField& field : request_fields()) {
        if (counts(field, request.spec.op)) continue;
        const ordered_json value = field.get(request);
        if (value == field.get(defaults)) continue;
        throw InvalidRequest(
            std::string(field.name), value.is_string() ? value.get<std::string>() : value.dump(),
            fmt::format(
                "nothing, with op {}: it takes dtype, head_dim or head_dim_vo, q_heads, lse and alignment",
                to_string(request.spec.op)));
    }
}

const RequestField* find_field(std::string_view name) {
    const auto found = std::ranges::find(kFields, name, &RequestField::name);
    return found == std::end(kFields) ? nullptr : found;
}

json flag_value(const RequestField& field, std::string_view text) {
    const std::string as_text(text);
    switch (field.type) {
        case FieldType::word:
        case FieldType::sm_list:
            return as_text;
        case FieldType::boolean:
            if (text.empty() || text == "true" || text == "on") return true;
            if (text == "false" || text == "off") return false;
            return as_text;
        case FieldType::integer:
        case FieldType::number:
            break;
    }
    if (!looks_like_json_number(text)) return as_text;
    if (field.type == FieldType::integer && is_integer_too_long(text)) {
        throw InvalidRequest(std::string(field.name), as_text.substr(0, 40), "an integer that fits 64 bits");
    }
    return json::parse(as_text);
}

json flag_values(const RequestField& field, std::string_view text) {
    if (field.role != FieldRole::choice || text.find(',') == text.npos) return flag_value(field, text);
    json values = json::array();
    while (true) {
        const std::size_t comma = text.find(',');
        const std::string_view item = text.substr(0, comma);
        values.push_back(item.empty() ? json("") : flag_value(field, item));
        if (comma == text.npos) return values;
        text.remove_prefix(comma + 1);
    }
}

}  // namespace attnsmith::problem
