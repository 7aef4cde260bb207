#include "problem/compute_capability.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "attnsmith/error.hpp"
#include "problem/spelling.hpp"

namespace attnsmith::problem {
namespace {

constexpr int kSms[] = {80, 86, 87, 89, 90, 100, 103, 110, 120, 121};

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

}  // namespace attnsmith::problem
