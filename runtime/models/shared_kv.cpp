#include "models/shared_kv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "attnsmith/error.hpp"
#include "models/heads.hpp"
#include "models/schemes.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

constexpr std::string_view kField = "num_kv_shared_layers";
constexpr std::string_view kTypes[] = {"gemma3n_text", "gemma4_text"};
// Its class takes a layer for one that shares only where a layer that does not comes first.
constexpr std::string_view kWithoutAssistants = "gemma3n_text";

std::size_t count_layers(const std::vector<LayerKind>& kinds) {
    std::size_t layers = 0;
    for (const LayerKind& kind : kinds) {
        for (const std::size_t layer : kind.members) layers = std::max(layers, layer + 1);
    }
    return layers;
}

// How many layers share; 0 where none does.
std::size_t count_shared(ModelReader& model, std::size_t layers) {
    const auto number = model.integer({kField});
    if (!number) return 0;
    const auto source = *model.find({kField});
    // A class's default is made for its own number of layers.
    if (source.is_default && *number >= static_cast<std::int64_t>(layers)) {
        model.note(fmt::format("{}: none of as few as {} layers shares by that default", kField, layers));
        return 0;
    }
    if (*number >= 0 && *number <= static_cast<std::int64_t>(layers))
        return static_cast<std::size_t>(*number);
    throw InvalidRequest(source.field, model.shown(source),
                         fmt::format("a number of layers from 0 to {}", layers));
}

// The config's word for layers of this kind, whose name may have their heads, too.
std::string_view word_of(const LayerKind& kind) {
    for (const std::string_view word : {kSliding, kFull}) {
        if (kind.name.starts_with(word)) return word;
    }
    return kind.name;
}

// A layer with keys and values of its own, and the kind that it is of.
struct Owner {
    std::size_t layer;
    const LayerKind* kind;
};

// The last layer before `first_shared` that slides, or sees all, as those of `kind` do.
std::optional<Owner> owner_for(const LayerKind& kind, const std::vector<LayerKind>& kinds,
                               std::size_t first_shared) {
    std::optional<Owner> last;
    for (const LayerKind& other : kinds) {
        if (word_of(other) != word_of(kind)) continue;
        for (const std::size_t layer : other.members) {
            if (layer < first_shared && (!last || layer > last->layer)) last = Owner{layer, &other};
        }
    }
    return last;
}

// Throws where a layer of `kind` could not read the keys and values of the owner.
void check_heads(ModelReader& model, const LayerKind& kind, std::size_t layer, const Owner& owner) {
    const Heads own = read_heads(model, kind), read = read_heads(model, *owner.kind);
    if (own.kv_heads == read.kv_heads && own.head_dim_qk == read.head_dim_qk) return;
    throw InvalidRequest(model.prefix() + "per_layer_config",
                         fmt::format("{} KV heads of {} in layer {}", own.kv_heads, own.head_dim_qk, layer),
                         fmt::format("the {} of {} of layer {}, whose keys and values it reads ({})",
                                     read.kv_heads, read.head_dim_qk, owner.layer, kField));
}

std::string note_of(std::int64_t shared, std::size_t first, std::size_t owner) {
    if (shared == 1) {
        return fmt::format(
            "{}: layer {} of these (counted from 0) has no keys and values of its own: give it the cache of "
            "layer {}, which the same attention reads",
            kField, first, owner);
    }
    return fmt::format(
        "{}: the {} of these layers from layer {} on (counted from 0) have no keys and values of their own: "
        "give them the cache of layer {}, which the same attention reads",
        kField, shared, first, owner);
}

}  // namespace

void note_shared_kv(ModelReader& model, std::vector<LayerKind>& kinds) {
    if (std::ranges::find(kTypes, model.code()) == std::end(kTypes)) return;
    const std::size_t layers = count_layers(kinds);
    const std::size_t shared = count_shared(model, layers);
    if (shared == 0) return;
    if (shared == layers) {
        model.note(fmt::format("{}: {}", kField,
                               model.code() == kWithoutAssistants
                                   ? "no layer shares where all are to, since none is before them"
                                   : "no layer has keys and values of its own: they are those of the model "
                                     "that this one assists"));
        return;
    }
    const std::size_t first_shared = layers - shared;
    for (LayerKind& kind : kinds) {
        const auto reads = [&](std::size_t layer) { return layer >= first_shared; };
        const auto first = std::ranges::find_if(kind.members, reads);
        if (first == kind.members.end()) continue;
        const auto owner = owner_for(kind, kinds, first_shared);
        if (!owner) {
            const auto source = *model.find({kField});
            throw InvalidRequest(
                source.field, model.shown(source),
                fmt::format("a number that leaves a layer of {} before those that share", word_of(kind)));
        }
        check_heads(model, kind, *first, *owner);
        kind.notes.push_back(note_of(std::ranges::count_if(kind.members, reads), *first, owner->layer));
    }
}

}  // namespace attnsmith::problem
