#include "planner/tuning_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "attnsmith/error.hpp"
#include "families/attention_family.hpp"
#include "families/registry/registry.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::planner {
namespace {

using families::Backend;
using families::MaskClass;
using families::TuningMatch;
using families::TuningTile;
using nlohmann::json;

constexpr std::string_view kSchema = "attnsmith.tuning/1";

// An object of the file, with the name that messages give it.
class Object {
  public:
    Object(const json& value, std::string name) : value_(value), name_(std::move(name)) {
        if (!value_.is_object()) throw InvalidRequest(name_, problem::describe(value_), "a JSON object");
    }

    std::string field(std::string_view name) const {
        return fmt::format("{}{}{}", name_, name_.ends_with(": ") ? "" : ".", problem::field_name(name));
    }

    void accept(std::initializer_list<std::string_view> names) const {
        for (const auto& item : value_.items()) {
            if (std::ranges::find(names, item.key()) == names.end())
                throw InvalidRequest(field(item.key()), "an unknown field",
                                     "one of " + problem::join_or({names.begin(), names.size()}));
        }
    }

    const json* find(std::string_view name) const {
        const auto found = value_.find(name);
        return found == value_.end() ? nullptr : &*found;
    }

    int integer(std::string_view name, int step, int least, int most) const {
        const json* value = find(name);
        const std::string accepted = least == most ? std::to_string(least)
                                     : step == 1
                                         ? fmt::format("an integer from {} to {}", least, most)
                                         : fmt::format("a multiple of {} from {} to {}", step, least, most);
        if (value == nullptr) throw InvalidRequest(field(name), "nothing", accepted);
        // The upper half of unsigned 64 bits turns negative, and is refused with what is below `least`.
        const std::int64_t number = value->is_number_integer() ? value->get<std::int64_t>() : -1;
        if (number < least || number > most || number % step != 0)
            throw InvalidRequest(field(name), problem::describe(*value), accepted);
        return static_cast<int>(number);
    }

    std::string word(std::string_view name, std::span<const std::string_view> accepted) const {
        const json* value = find(name);
        if (value == nullptr) throw InvalidRequest(field(name), "nothing", problem::join_or(accepted));
        if (!value->is_string() || std::ranges::find(accepted, value->get<std::string>()) == accepted.end())
            throw InvalidRequest(field(name), problem::describe(*value), problem::join_or(accepted));
        return value->get<std::string>();
    }

    std::optional<bool> boolean(std::string_view name) const {
        const json* value = find(name);
        if (value == nullptr) return std::nullopt;
        if (!value->is_boolean())
            throw InvalidRequest(field(name), problem::describe(*value), "true or false");
        return value->get<bool>();
    }

    // Throws where it is not there.
    Object object(std::string_view name) const {
        const json* value = find(name);
        if (value == nullptr) throw InvalidRequest(field(name), "nothing", "a JSON object");
        return {*value, field(name)};
    }

  private:
    const json& value_;
    std::string name_;
};

constexpr std::array<std::string_view, 2> kStorages = {"contiguous", "paged"};
constexpr std::array kMasks = {MaskClass::full, MaskClass::causal, MaskClass::window};

std::optional<MaskClass> parse_mask(const Object& object) {
    if (object.find("mask") == nullptr) return std::nullopt;
    std::vector<std::string_view> words;
    for (const MaskClass mask : kMasks) words.push_back(to_string(mask));
    const std::string word = object.word("mask", words);
    return kMasks[static_cast<std::size_t>(std::ranges::find(words, word) - words.begin())];
}

TuningMatch parse_match(const Object& object) {
    object.accept({"sm", "head_dim_qk", "head_dim_vo", "kv", "kv_bits", "mask", "dtype", "softcap", "alibi",
                   "gathered", "max_rows"});
    TuningMatch match;
    match.sm = object.integer("sm", 1, 80, 999);
    match.head_dim_qk = object.integer("head_dim_qk", 8, 8, 256);
    match.head_dim_vo = object.integer("head_dim_vo", 8, 8, 256);
    match.paged = object.word("kv", kStorages) == kStorages[1];
    if (object.find("kv_bits") != nullptr) match.kv_bits = object.integer("kv_bits", 8, 8, 16);
    match.mask = parse_mask(object);
    if (object.find("dtype") != nullptr) {
        const std::vector<std::string_view> dtypes = problem::kFloatDTypeWords.names();
        match.dtype = problem::kFloatDTypeWords.parse(object.field("dtype"), object.word("dtype", dtypes));
    }
    match.softcap = object.boolean("softcap");
    match.alibi = object.boolean("alibi");
    match.gathered = object.boolean("gathered");
    if (match.gathered == true && !match.paged)
        throw InvalidRequest(object.field("gathered"), "true", "false: the entry is for contiguous KV");
    if (object.find("max_rows") != nullptr)
        match.max_rows = object.integer("max_rows", 1, 1, std::numeric_limits<int>::max());
    return match;
}

// The backend must be that of a family whose tiles are tuned.
const families::AttentionFamily& parse_backend(const Object& object) {
    std::vector<const families::AttentionFamily*> tuned;
    std::vector<std::string_view> words;
    for (const families::Family* family : families::all_families()) {
        const families::AttentionFamily* const attention = family->attention();
        if (attention == nullptr || !attention->tuned_phase()) continue;
        tuned.push_back(attention);
        words.push_back(to_string(family->backend()));
    }
    const std::string word = object.word("backend", words);
    return *tuned[static_cast<std::size_t>(std::ranges::find(words, word) - words.begin())];
}

// What the instruction can do at all; what else decides is the family's affair. A family that is tuned for
// decode has one tile of rows there, and takes its other tiles from no table.
TuningTile parse_tile(const Object& object, const Object& of_match, const TuningMatch& match) {
    object.accept({"backend", "tile_q", "tile_kv", "stages"});
    const families::AttentionFamily& family = parse_backend(object);
    const bool decodes = family.tuned_phase() == families::Phase::decode;
    if (decodes && match.max_rows != families::kDecodeRows) {
        throw InvalidRequest(of_match.field("max_rows"),
                             match.max_rows ? std::to_string(*match.max_rows) : "nothing",
                             fmt::format("{}: tables choose tiles of {} for decode alone",
                                         families::kDecodeRows, to_string(family.backend())));
    }
    const int rows = decodes ? families::kDecodeRows : 64;
    return {.backend = family.backend(),
            .tile_q = object.integer("tile_q", rows, rows, decodes ? rows : 256),
            .tile_kv = object.integer("tile_kv", 16, 16, 256),
            .stages = object.integer("stages", 1, 1, 8)};
}

MeasuredEntry parse_entry(const Object& object, TileSource source) {
    object.accept({"match", "tile", "measured"});
    const Object of_match = object.object("match");
    const TuningMatch match = parse_match(of_match);
    MeasuredEntry entry{
        {.match = match, .tile = parse_tile(object.object("tile"), of_match, match), .source = source}};
    if (object.find("measured") != nullptr) {
        (void)object.object("measured");
        entry.measured = problem::one_line(*object.find("measured"));
    }
    return entry;
}

json parse_text(std::string_view text, const std::string& file) {
    try {
        return problem::parse_json_object(text, {.what = file});
    } catch (const InvalidRequest& error) {
        if (error.field() == file) throw;
        throw InvalidRequest(file + ": " + error.field(), error.value(), error.accepted());
    }
}

nlohmann::ordered_json tile_json(const TuningTile& tile) {
    return {{"backend", to_string(tile.backend)},
            {"tile_q", tile.tile_q},
            {"tile_kv", tile.tile_kv},
            {"stages", tile.stages}};
}

}  // namespace

nlohmann::ordered_json match_json(const TuningMatch& match) {
    nlohmann::ordered_json result = {{"sm", match.sm},
                                     {"head_dim_qk", match.head_dim_qk},
                                     {"head_dim_vo", match.head_dim_vo},
                                     {"kv", kStorages[match.paged ? 1 : 0]}};
    if (match.kv_bits != TuningMatch{}.kv_bits) result["kv_bits"] = match.kv_bits;
    if (match.mask) result["mask"] = to_string(*match.mask);
    if (match.dtype) result["dtype"] = to_string(*match.dtype);
    if (match.softcap) result["softcap"] = *match.softcap;
    if (match.alibi) result["alibi"] = *match.alibi;
    if (match.gathered) result["gathered"] = *match.gathered;
    if (match.max_rows) result["max_rows"] = *match.max_rows;
    return result;
}

std::vector<MeasuredEntry> parse_tuning(std::string_view text, std::string_view file, TileSource source) {
    const std::string name(file);
    const json value = parse_text(text, name);
    const Object document(value, name + ": ");
    document.accept({"schema", "entries"});
    (void)document.word("schema", std::array{kSchema});
    const json* list = document.find("entries");
    if (list == nullptr || !list->is_array())
        throw InvalidRequest(document.field("entries"),
                             list == nullptr ? "nothing" : problem::describe(*list),
                             "a list of objects with match and tile");
    std::vector<MeasuredEntry> entries;
    std::set<TuningMatch> matches;
    for (const json& one : *list) {
        const std::string where = fmt::format("{}: entries[{}]", file, entries.size());
        entries.push_back(parse_entry(Object(one, where), source));
        if (!matches.insert(entries.back().match).second)
            throw InvalidRequest(where + ".match", "that of an entry before", "each match once");
    }
    return entries;
}

std::string to_json(std::span<const MeasuredEntry> entries) {
    std::vector<MeasuredEntry> sorted(entries.begin(), entries.end());
    std::ranges::stable_sort(sorted, std::less<>(), &MeasuredEntry::match);
    std::string text = fmt::format("{{\n  \"schema\": \"{}\",\n  \"entries\": [", kSchema);
    const char* separator = "\n";
    for (const MeasuredEntry& entry : sorted) {
        text +=
            fmt::format("{}    {{\"match\": {},\n     \"tile\": {}", separator,
                        problem::one_line(match_json(entry.match)), problem::one_line(tile_json(entry.tile)));
        if (!entry.measured.empty()) text += fmt::format(",\n     \"measured\": {}", entry.measured);
        text += "}";
        separator = ",\n";
    }
    return text + "\n  ]\n}\n";
}

}  // namespace attnsmith::planner
