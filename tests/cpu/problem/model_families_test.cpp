// Models as they are published: each fixture of tests/models/families is the facts of a config.json, with the
// plan that follows from the model's own code. See the README there.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;
using nlohmann::json;

namespace {

// {"$repeat": [[["a", "b"], 2], [["c"], 1]]} is ["a", "b", "a", "b", "c"].
json expanded(const json& value) {
    if (!value.is_structured()) return value;
    if (value.is_object() && value.contains("$repeat")) {
        json list = json::array();
        for (const json& part : value["$repeat"]) {
            for (int i = 0; i < part[1].get<int>(); ++i)
                list.insert(list.end(), part[0].begin(), part[0].end());
        }
        return list;
    }
    json copy = value;
    for (json& item : copy) item = expanded(item);
    return copy;
}

std::vector<json> fixtures() {
    std::vector<json> all;
    for (const auto& entry : std::filesystem::directory_iterator(kModels / "families")) {
        if (entry.path().extension() != ".json") continue;
        for (const json& fixture : json::parse(read_file(entry.path()))) all.push_back(fixture);
    }
    return all;
}

std::vector<Attention> planned(const json& fixture) {
    std::vector<Attention> all;
    for (const json& kind : fixture["planned"]) {
        const json& dims = kind["dims"];
        const std::int64_t qk = dims.is_array() ? dims[0] : dims;
        const std::int64_t vo = dims.is_array() ? dims[1] : dims;
        Attention attention = {"", kind["layers"], kind["heads"][0], kind["heads"][1], qk, vo, 0};
        attention.scale = kind.value("scale", rsqrt(static_cast<double>(qk)));
        if (kind.contains("softcap")) attention.softcap = kind["softcap"].get<double>();
        if (kind.contains("window")) {
            const json& window = kind["window"];
            attention.window_left = window.is_array() ? window[0].get<int>() : window.get<int>();
            if (window.is_array()) attention.window_right = window[1].get<int>();
        }
        if (kind.contains("chunk")) attention.attention_chunk = kind["chunk"].get<int>();
        attention.alibi = kind.value("alibi", false);
        attention.sink = kind.value("sink", false);
        attention.mask = kind.value("mask", "causal") == "full" ? Mask::full : Mask::causal;
        for (const json& phase : kind.value("phases", json{"prefill", "decode"})) {
            attention.name = kind["attention"].get<std::string>() + "/" + phase.get<std::string>();
            all.push_back(attention);
        }
    }
    return all;
}

// Scales that differ by rounding only are made the same.
std::vector<Attention> with_scales_of(std::vector<Attention> attentions,
                                      const std::vector<Attention>& other) {
    for (std::size_t i = 0; i < attentions.size() && i < other.size(); ++i) {
        const double difference = std::abs(attentions[i].scale / other[i].scale - 1.0);
        if (difference < 1e-14) attentions[i].scale = other[i].scale;
    }
    return attentions;
}

std::vector<std::string> warnings(const Model& model) {
    std::vector<std::string> all;
    for (const ModelWarning& warning : model.warnings)
        all.push_back(std::string(to_string(warning.kind)) + " " + warning.field);
    return all;
}

std::vector<std::string> unsupported(const Model& model) {
    std::vector<std::string> all;
    for (const UnsupportedPart& part : model.unsupported) all.push_back(part.name);
    return all;
}

// Notes of one kind of layers alone: its attentions have them, and no others do.
void check_own_notes(const Model& model, const json& fixture) {
    for (const json& kind : fixture["planned"]) {
        for (const json& part : kind.value("notes", json::array())) {
            const std::string beginning = kind["attention"].get<std::string>() + "/";
            for (const ModelAttention& attention : model.attentions) {
                INFO(attention.name);
                const bool found = std::ranges::any_of(attention.notes, [&](const std::string& note) {
                    return contains(note, part.get<std::string>());
                });
                CHECK(found == attention.name.starts_with(beginning));
            }
        }
    }
}

}  // namespace

TEST_CASE("published models are planned as their own code computes them", "[model]") {
    std::set<std::string> names;
    for (const json& fixture : fixtures()) {
        const auto name = fixture["family"].get<std::string>();
        INFO(name);
        CHECK(names.insert(name).second);
        const std::string config = expanded(fixture["config"]).dump();
        ModelOptions options = parse_model_options(fixture.value("options", json::object()).dump());
        const Model model = parse_model(config, options);
        const std::vector<Attention> expected = planned(fixture);
        CHECK(with_scales_of(summary(model), expected) == expected);
        CHECK(unsupported(model) == fixture.value("unsupported", std::vector<std::string>()));
        CHECK(warnings(model) == fixture.value("warnings", std::vector<std::string>()));
        for (const json& note : fixture.value("notes", json::array()))
            CHECK(has_note(model, note.get<std::string>()));
        check_own_notes(model, fixture);
        const bool has_latents = fixture["config"].dump().find("kv_lora_rank") != std::string::npos;
        for (const ModelAttention& attention : model.attentions) {
            const AttentionSpec& spec = attention.request.spec;
            const bool from_latents = has_latents && attention.phase == "prefill";
            CHECK(spec.kv == (spec.mask == Mask::full ? KvStorage::dense
                              : from_latents          ? KvStorage::ragged
                                                      : KvStorage::paged));
        }
        // Strict passes where everything is planned, and only there.
        options.strict = true;
        if (model.unsupported.empty() && model.warnings.empty()) {
            CHECK_NOTHROW(parse_model(config, options));
        } else {
            CHECK_THROWS_AS(parse_model(config, options), Unsupported);
        }
    }
    CHECK(names.size() >= 60);
}

TEST_CASE("an encoder is planned dense or ragged, whatever a decoder would be", "[model]") {
    const auto all = fixtures();
    const auto fixture = std::ranges::find(all, "bert-base", [](const json& each) { return each["family"]; });
    REQUIRE(fixture != all.end());
    ModelOptions options;
    options.kv = KvStorage::ragged;
    const Model model = parse_model((*fixture)["config"].dump(), options);
    REQUIRE(model.attentions.size() == 1);
    CHECK(model.attentions[0].request.spec.kv == KvStorage::ragged);
    CHECK_FALSE(has_note(model, "dense KV"));
}
