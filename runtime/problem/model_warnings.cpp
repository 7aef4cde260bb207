#include "problem/model_warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "problem/json_text.hpp"
#include "problem/model_fields.hpp"

namespace attnsmith {
namespace problem {
namespace {

using nlohmann::json;

bool is_off(const json& value) {
    if (value.is_number()) return value == 0;
    return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

bool is_list_of_objects(const json& value) {
    return value.is_array() && !value.empty() &&
           std::ranges::all_of(value, [](const json& item) { return item.is_object(); });
}

// Whether any name inside speaks of attention, at any depth.
bool content_speaks(const json& value) {
    if (value.is_array()) return std::ranges::any_of(value, content_speaks);
    if (!value.is_object()) return false;
    return std::ranges::any_of(value.items(), [](const auto& item) {
        return speaks_of_attention(item.key()) || content_speaks(item.value());
    });
}

// A part with attention of its own: a tower by its name, or an object that counts its heads.
bool is_tower(const std::string& name, const json& value) {
    if (value.is_string()) return name.ends_with("_tower") && value != "";
    if (!value.is_object() || value.empty()) return false;
    return names_a_tower(name) || ModelReader::counts_heads(value);
}

// A name for messages, part by part: "text_config.\"x\\n\"".
std::string printable_field(const std::string& field) {
    std::string text;
    for (std::size_t begin = 0; begin <= field.size();) {
        const std::size_t end = std::min(field.find('.', begin), field.size());
        text += (begin == 0 ? "" : ".") + field_name(std::string_view(field).substr(begin, end - begin));
        begin = end + 1;
    }
    return text;
}

// Below an object whose name speaks of attention every field does.
bool any_part_speaks(const ModelReader& model, const std::string& field) {
    const bool inside = field.starts_with(model.prefix());
    return speaks_of_attention(std::string_view(field).substr(inside ? model.prefix().size() : 0));
}

class Finder {
  public:
    explicit Finder(const ModelReader& model) : model_(model) {}

    std::vector<ModelWarning> find(bool planned) {
        find_unknown_types();
        model_.visit_unread([&](const std::string& field, const std::string& name, const json& value) {
            return visit(field, name, value, planned);
        });
        return std::move(found_);
    }

  private:
    void add(WarningKind kind, const std::string& field, std::string text) {
        found_.push_back({kind, printable_field(field), std::move(text)});
    }

    void find_unknown_types() {
        const std::string& inner = model_.model_type();
        const std::string& file = model_.file_model_type();
        if (inner.empty()) {
            add(WarningKind::unknown_type, model_.prefix() + "model_type",
                "no model_type is given: read as a plain decoder, by the names of its fields");
        } else if (model_.type_class() == TypeClass::unknown) {
            add(WarningKind::unknown_type, inner == file ? "model_type" : model_.prefix() + "model_type",
                fmt::format("model_type {} is not known: read as a plain decoder, by the names of its fields",
                            field_name(inner)));
        }
        if (file != inner && !file.empty() && class_of(file) == TypeClass::unknown) {
            add(WarningKind::unknown_type, "model_type",
                fmt::format("model_type {} is not known: its language model is planned as if nothing around "
                            "it changed its attention",
                            field_name(file)));
        }
    }

    // Whether the members of an object are to be visited.
    bool visit(const std::string& field, const std::string& name, const json& value, bool planned) {
        if (is_daily_life(model_.model_type(), name)) return false;
        if (is_tower(name, value)) {
            add(WarningKind::not_planned, field,
                fmt::format("the attention of {} is not planned", printable_field(field)));
            return false;
        }
        if (value.is_object()) return true;
        const bool speaks =
            any_part_speaks(model_, field) || (is_list_of_objects(value) && content_speaks(value));
        if (planned && speaks && !is_off(value)) {
            add(WarningKind::unread_field, field,
                fmt::format("{} ({}) speaks of attention, but is not read", printable_field(field),
                            describe(value)));
        }
        return false;
    }

    const ModelReader& model_;
    std::vector<ModelWarning> found_;
};

}  // namespace

std::vector<ModelWarning> find_warnings(const ModelReader& model, bool planned) {
    return Finder(model).find(planned);
}

std::vector<Refusal> doubts(const Model& model) {
    std::vector<Refusal> all;
    for (const UnsupportedPart& part : model.unsupported) all.push_back({part.name, part.reason});
    for (const ModelWarning& warning : model.warnings) all.push_back({warning.field, warning.text});
    return all;
}

}  // namespace problem

std::string_view to_string(WarningKind kind) {
    switch (kind) {
        case WarningKind::unknown_type:
            return "unknown_type";
        case WarningKind::unread_field:
            return "unread_field";
        case WarningKind::not_planned:
            return "not_planned";
        case WarningKind::approximated:
            break;
    }
    return "approximated";
}

}  // namespace attnsmith
