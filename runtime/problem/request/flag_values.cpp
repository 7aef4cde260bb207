// What flags say, as the JSON of a request.
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/error.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

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
