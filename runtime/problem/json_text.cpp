#include "problem/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "attnsmith/error.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;

struct PythonConstant {
    std::string_view name;
    double value;
};
constexpr PythonConstant kPythonConstants[] = {{"NaN", std::numeric_limits<double>::quiet_NaN()},
                                               {"Infinity", std::numeric_limits<double>::infinity()},
                                               {"-Infinity", -std::numeric_limits<double>::infinity()}};

// The number that quote_python_constants made this string of.
std::optional<double> python_constant(std::string_view text) {
    if (!text.starts_with('\0')) return std::nullopt;
    const auto* found = std::ranges::find(kPythonConstants, text.substr(1), &PythonConstant::name);
    return found == std::end(kPythonConstants) ? std::nullopt : std::optional(found->value);
}

// "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error ..." without the library's
// tag.
std::string strip_tag(std::string_view message) {
    if (const std::size_t end = message.find("] "); message.starts_with('[') && end != message.npos) {
        message.remove_prefix(end + 2);
    }
    return std::string(message);
}

// Drops the part that repeats the offending text: it can be as long as the whole input.
std::string without_last_read(std::string message) {
    const std::size_t begin = message.find("; last read: '");
    if (begin == message.npos) return message;
    const std::size_t expected = message.rfind("; expected ");
    const bool has_expected = expected != message.npos && expected > begin;
    return message.substr(0, begin) + (has_expected ? message.substr(expected) : std::string());
}

// Builds the value event by event, so that every fault is seen where it is: a key that comes twice, an
// integer that a double would round, nesting that has no end.
class Builder final : public nlohmann::json_sax<json> {
  public:
    explicit Builder(const JsonRules& rules) : rules_(rules) {}

    json take() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool string(string_t& value) override {
        if (const auto constant = rules_.python_constants ? python_constant(value) : std::nullopt)
            return add(*constant);
        return add(std::move(value));
    }
    bool binary(binary_t&) override { return false; }  // JSON text has none

    bool number_float(number_float_t value, const string_t& text) override {
        if (rules_.exact_integers && text.find_first_of(".eE") == text.npos) {
            throw InvalidRequest(place(), shortened(text), "an integer that fits 64 bits");
        }
        return add(value);
    }

    bool key(string_t& name) override {
        if (rules_.python_constants && python_constant(name)) {
            throw InvalidRequest(std::string(rules_.what),
                                 fmt::format("malformed JSON (the key {} is no string)", name.substr(1)),
                                 "a JSON object");
        }
        if (open_.back()->contains(name)) {
            throw InvalidRequest(field_name(name), "a field that is given twice", "each field once");
        }
        key_ = std::move(name);
        return true;
    }

    bool start_object(std::size_t) override { return open(json::object()); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(json::array()); }
    bool end_array() override { return close(); }

    bool parse_error(std::size_t, const std::string& token,
                     const nlohmann::detail::exception& error) override {
        constexpr int kNumberOverflow = 406;
        if (error.id == kNumberOverflow) {
            throw InvalidRequest(place(), shortened(token), "a finite number");
        }
        throw InvalidRequest(std::string(rules_.what),
                             fmt::format("malformed JSON ({})", without_last_read(strip_tag(error.what()))),
                             "a JSON object");
    }

  private:
    static std::string shortened(const std::string& number) {
        constexpr std::size_t kMost = 40;
        return number.size() <= kMost ? number : number.substr(0, kMost) + "...";
    }

    std::string place() const { return key_.empty() ? std::string(rules_.what) : field_name(key_); }

    template <typename Value>
    json* insert(Value&& value) {
        if (open_.empty()) {
            root_ = std::forward<Value>(value);
            return &root_;
        }
        json& parent = *open_.back();
        if (parent.is_array()) {
            parent.push_back(std::forward<Value>(value));
            return &parent.back();
        }
        return &(parent[key_] = std::forward<Value>(value));
    }

    template <typename Value>
    bool add(Value&& value) {
        insert(std::forward<Value>(value));
        return true;
    }

    // Pointers to open containers stay valid: a container grows only while it is the innermost one.
    bool open(json container) {
        if (open_.size() == kMaxDepth) {
            throw InvalidRequest(place(), "JSON nested too deeply",
                                 fmt::format("at most {} levels", kMaxDepth));
        }
        open_.push_back(insert(std::move(container)));
        return true;
    }

    bool close() {
        open_.pop_back();
        return true;
    }

    const JsonRules& rules_;
    json root_;
    std::vector<json*> open_;
    std::string key_;
};

// Makes strings of NaN, Infinity and -Infinity, which the JSON library would refuse. A NUL sets them apart
// from strings that a file would write.
std::string quote_python_constants(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    bool in_string = false;
    for (std::size_t i = 0; i < text.size();) {
        const std::string_view rest = text.substr(i);
        const auto* constant = std::ranges::find_if(
            kPythonConstants, [&](const auto& known) { return rest.starts_with(known.name); });
        if (!in_string && constant != std::end(kPythonConstants)) {
            result += fmt::format("\"\\u0000{}\"", constant->name);
            i += constant->name.size();
            continue;
        }
        if (in_string && text[i] == '\\' && i + 1 < text.size())
            result += text[i++];
        else if (text[i] == '"')
            in_string = !in_string;
        result += text[i++];
    }
    return result;
}

json parse(std::string_view text, const JsonRules& rules) {
    Builder builder(rules);
    json::sax_parse(text.begin(), text.end(), &builder);  // faults are thrown by the builder
    return builder.take();
}

template <typename Json>
std::optional<Json> parse_any(std::string_view text) {
    Json parsed = Json::parse(text, nullptr, false);
    return parsed.is_discarded() ? std::nullopt : std::optional(std::move(parsed));
}

template <typename Json>
std::string text_of(const Json& value, int indent) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::optional<json> parse_json(std::string_view text) { return parse_any<json>(text); }
std::optional<nlohmann::ordered_json> parse_ordered_json(std::string_view text) {
    return parse_any<nlohmann::ordered_json>(text);
}

std::string one_line(const json& value) { return text_of(value, -1); }
std::string one_line(const nlohmann::ordered_json& value) { return text_of(value, -1); }
std::string indented(const nlohmann::ordered_json& value) { return text_of(value, 2); }

json parse_json_object(std::string_view text, const JsonRules& rules) {
    const std::string what(rules.what);
    if (text.find_first_not_of(" \t\r\n") == text.npos)
        throw InvalidRequest(what, "empty text", "a JSON object");
    // To the JSON library a NUL character is the end of its input.
    if (const std::size_t nul = text.find('\0'); nul != text.npos) {
        throw InvalidRequest(what, fmt::format("malformed JSON (a NUL character at byte {})", nul + 1),
                             "a JSON object");
    }
    if (text.size() > rules.most_bytes) {
        throw InvalidRequest(what, fmt::format("text of {} bytes", text.size()),
                             fmt::format("at most {} bytes of JSON", rules.most_bytes));
    }
    json value = rules.python_constants ? parse(quote_python_constants(text), rules) : parse(text, rules);
    if (!value.is_object()) throw InvalidRequest(what, describe(value), "a JSON object");
    return value;
}

std::string describe(const json& value) {
    if (value.is_string()) return quote(value.get_ref<const std::string&>());
    if (value.is_array()) return fmt::format("a list of {}", value.size());
    if (value.is_object()) return "an object";
    if (value.is_number_float()) {  // the JSON library writes null for what is not finite
        const auto number = value.get<double>();
        if (std::isnan(number)) return "NaN";
        if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    }
    return value.dump();
}

std::string field_name(std::string_view key) {
    constexpr std::size_t kLongest = 60;
    const bool ordinary = !key.empty() && key.size() <= kLongest && std::ranges::all_of(key, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-' || c == '.';
    });
    return ordinary ? std::string(key) : quote(key);
}

}  // namespace attnsmith::problem
