#include "models/warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/field_readers.hpp"
#include "models/fields.hpp"
#include "problem/json_text.hpp"

namespace attnsmith {
namespace problem {
namespace {

using nlohmann::json;

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

// Below an object whose name speaks of attention every field does.
bool any_part_speaks(const ModelReader& model, const std::string& field) {
    const bool inside = field.starts_with(model.prefix());
    return speaks_of_attention(std::string_view(field).substr(inside ? model.prefix().size() : 0));
}

// Letters and digits alone, in small letters: "gpt_neox" and "GPTNeoX" alike.
std::string evened(std::string_view name) {
    std::string text;
    for (const char letter : name) {
        const auto code = static_cast<unsigned char>(letter);
        if (std::isalnum(code) != 0) text += static_cast<char>(std::tolower(code));
    }
    return text;
}

bool is_of_family(std::string_view class_name, std::string_view model_type) {
    for (const std::string_view part : {"_text_model", "_vision_model", "_text"}) {
        if (model_type.ends_with(part)) model_type.remove_suffix(part.size());
    }
    const std::string name = evened(class_name);
    const std::string family = evened(model_type);
    if (family.empty() || !name.starts_with(family)) return false;
    const std::string_view task = std::string_view(name).substr(family.size());
    return std::ranges::any_of(
        std::initializer_list<std::string_view>{"for", "model", "lmheadmodel", "pretrainedmodel",
                                                "doubleheadsmodel", "text", "vision"},
        [&](std::string_view begin) { return task.starts_with(begin); });
}

// "Bi", "Bidirectional" or "Encoder" as a word of a class's name, as in LlamaBiForMNTP.
bool says_bidirectional(std::string_view class_name) {
    for (const std::string_view word : {"Bi", "Bidirectional", "BiDirectional", "Encoder"}) {
        for (std::size_t at = class_name.find(word); at != class_name.npos;
             at = class_name.find(word, at + 1)) {
            const std::size_t end = at + word.size();
            const bool ends =
                end == class_name.size() || std::islower(static_cast<unsigned char>(class_name[end])) == 0;
            if (ends) return true;
        }
    }
    return false;
}

// The classes of models that a file's auto_map names: the last part of "modeling_x.XModel".
std::vector<std::string> mapped_classes(const json& auto_map) {
    std::vector<std::string> classes;
    if (!auto_map.is_object()) return classes;
    for (const auto& item : auto_map.items()) {
        if (!item.key().starts_with("AutoModel") || !item.value().is_string()) continue;
        const auto path = item.value().get<std::string>();
        classes.push_back(path.substr(path.rfind('.') + 1));
    }
    return classes;
}

// Fields that say which layers have the window that another field gives.
bool shapes_windows(std::string_view name) {
    constexpr std::string_view kNames[] = {"use_sliding_window",         "max_window_layers",
                                           "sliding_window_pattern",     "_sliding_window_pattern",
                                           "global_attn_every_n_layers", "sliding_window_layers"};
    return std::ranges::find(kNames, name) != std::end(kNames);
}

class Finder {
  public:
    Finder(const ModelReader& model, const std::vector<ModelAttention>& planned)
        : model_(model), planned_(planned) {}

    std::vector<ModelWarning> find() {
        find_unknown_types();
        model_.visit_unread([&](const std::string& field, const std::string& name, const json& value) {
            return visit(field, name, value);
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
                "no model_type is given: read as a plain decoder, by the names of its fields, "
                "which gives wrong results where its code does otherwise");
        } else if (model_.type_class() == TypeClass::unknown) {
            add(WarningKind::unknown_type, inner == file ? "model_type" : model_.prefix() + "model_type",
                fmt::format(
                    "model_type {} is not known: read as a plain decoder, by the names of its fields, "
                    "which gives wrong results where its code does otherwise",
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
    bool visit(const std::string& field, const std::string& name, const json& value) {
        if (is_daily_life(model_.model_type(), name) || is_daily_life(model_.file_model_type(), name))
            return false;
        if (field == model_.prefix() + name && !reads_field(model_.model_type(), name)) {
            if (!planned_.empty() && would_change(name, value)) {
                add(WarningKind::unread_field, field,
                    fmt::format("{}'s own code does not read {} ({}): planned without it",
                                field_name(model_.model_type()), printable_field(field), describe(value)));
            }
            return false;
        }
        if (is_tower(name, value)) {
            add(WarningKind::not_planned, field,
                fmt::format("the attention of {} is not planned", printable_field(field)));
            return false;
        }
        if (value.is_object()) return true;
        const bool speaks =
            any_part_speaks(model_, field) || (is_list_of_objects(value) && content_speaks(value));
        if (!planned_.empty() && speaks && !is_off(value)) {
            add(WarningKind::unread_field, field,
                fmt::format(
                    "{} ({}) speaks of attention, but is not read: where it changes the attention, what is "
                    "planned gives wrong results",
                    printable_field(field), describe(value)));
        }
        return false;
    }

    // Whether a type that reads the field would be planned otherwise.
    bool would_change(std::string_view name, const json& value) const {
        if (name == "position_embedding_type")
            return value.is_string() &&
                   (value == "alibi" || value.get<std::string>().starts_with("relative"));
        // Files have it with the list of layers that was made from it.
        if (name == "_sliding_window_pattern" && model_.lists("layer_types")) return false;
        if (shapes_windows(name)) {
            return !value.is_null() && std::ranges::any_of(planned_, [](const ModelAttention& attention) {
                return attention.request.spec.window_left.has_value();
            });
        }
        if (name == "sliding_window" && is_turned_off()) return false;
        if (name == "scale_attn_weights") return value == false;
        const bool all_full = value.is_array() && std::ranges::all_of(value, [](const json& layer) {
                                  return layer == "full_attention" || layer == "attention";
                              });
        return !all_full && !is_off(value);
    }

    bool is_turned_off() const {
        const auto used = model_.inside_and_around("use_sliding_window");
        return !used.empty() && used.back().value == false;
    }

    const ModelReader& model_;
    const std::vector<ModelAttention>& planned_;
    std::vector<ModelWarning> found_;
};

ModelWarning own_code(const ModelReader& model, const std::string& field, const std::string& class_name) {
    return {WarningKind::approximated, printable_field(field),
            fmt::format("the model brings its own code ({}): its attention is planned as {}'s",
                        field_name(class_name), field_name(model.model_type()))};
}

}  // namespace

std::vector<ModelWarning> find_own_code(const ModelReader& model, bool bidirectional) {
    std::vector<ModelWarning> found;
    if (model.type_class() == TypeClass::unknown) return found;  // warned of as a whole
    const std::string& inner = model.model_type();
    const std::string& outer = model.file_model_type();
    if (!comes_with_code(inner) && !comes_with_code(outer)) {
        for (const auto& map : model.inside_and_around("auto_map")) {
            const std::vector<std::string> classes = mapped_classes(map.value);
            const auto foreign = std::ranges::find_if(classes, [&](const std::string& name) {
                return !is_of_family(name, inner) && !is_of_family(name, outer);
            });
            if (foreign != classes.end()) found.push_back(own_code(model, map.field, *foreign));
        }
    }
    if (bidirectional || model.encoder_decoder()) return found;
    for (const auto& listed : model.inside_and_around("architectures")) {
        if (!listed.value.is_array()) continue;
        const auto other = std::ranges::find_if(listed.value, [](const json& name) {
            return name.is_string() && says_bidirectional(name.get_ref<const std::string&>());
        });
        if (other != listed.value.end())
            found.push_back(own_code(model, listed.field, other->get<std::string>()));
    }
    return found;
}

std::vector<ModelWarning> find_warnings(const ModelReader& model,
                                        const std::vector<ModelAttention>& planned) {
    return Finder(model, planned).find();
}

void sort_by_weight(std::vector<ModelWarning>& warnings) {
    const auto weight = [](const ModelWarning& warning) {
        constexpr WarningKind kOrder[] = {WarningKind::approximated, WarningKind::unread_field,
                                          WarningKind::unknown_type, WarningKind::ignored,
                                          WarningKind::not_planned};
        return std::ranges::find(kOrder, warning.kind) - std::begin(kOrder);
    };
    std::ranges::stable_sort(warnings, {}, weight);
}

std::vector<Refusal> doubts(const Model& model) {
    std::vector<Refusal> all;
    for (const UnsupportedPart& part : model.unsupported) all.push_back({part.name, part.reason});
    for (const ModelWarning& warning : model.warnings) all.push_back({warning.field, warning.text});
    return all;
}

}  // namespace problem
}  // namespace attnsmith
