#include "problem/request/sm_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "attnsmith/error.hpp"
#include "problem/compute_capability.hpp"
#include "problem/json_text.hpp"
#include "problem/request/json_values.hpp"
#include "problem/spelling.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr std::string_view kEverySm = "all";
constexpr std::string_view kPresentSm = "native";

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

}  // namespace

std::vector<int> sms_of(const json& value) {
    std::vector<int> sms;
    if (value.is_null() || value == kPresentSm) return sms;
    if (!value.is_array()) {
        add_sm_value(sms, value);
        return sms;
    }
    for (const json& item : value) add_sm_value(sms, item);
    return sms;
}

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

}  // namespace attnsmith::problem
