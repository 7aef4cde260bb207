// Errors about a config name the config's own fields, whatever field of a request they were made into.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;
using nlohmann::json;

namespace {

struct Place {
    json::json_pointer pointer;
    std::string field;  // as messages have it: "text_config.num_kv_heads[3]"
};

const Place kRoot = {json::json_pointer(""), ""};

// Every value of a config, and every number of it. Of a list the first two entries stand for the rest.
void collect(const json& value, const Place& at, std::set<std::string>& fields, std::vector<Place>& numbers) {
    fields.insert(at.field);
    if (value.is_number()) numbers.push_back(at);
    if (value.is_object()) {
        for (const auto& item : value.items()) {
            const std::string dot = at.field.empty() ? "" : ".";
            collect(item.value(), {at.pointer / item.key(), at.field + dot + item.key()}, fields, numbers);
        }
    }
    for (std::size_t i = 0; value.is_array() && i < value.size() && i < 2; ++i) {
        collect(value[i], {at.pointer / i, at.field + "[" + std::to_string(i) + "]"}, fields, numbers);
    }
}

// Where every number of a config is another value, a plan, a refusal or an error of the config's fields.
struct Outcomes {
    int plans = 0, errors = 0;
};

void mutate_numbers(const json& config, Outcomes& outcomes) {
    const json values[] = {
        0,
        -1,
        1,
        3000000,
        2147483647,
        json::parse("99999999999999999999"),
        1e300,
        1e-300,
        -1e300,
        0.5,
        true,
        "x",
        "64",
        json::array(),
        json::array({0}),
        json::object(),
    };
    std::vector<Place> numbers;
    std::set<std::string> unused;
    collect(config, kRoot, unused, numbers);
    for (const Place& place : numbers) {
        for (const json& value : values) {
            json changed = config;
            changed[place.pointer] = value;
            INFO(place.field << " = " << value.dump());
            std::set<std::string> fields;
            std::vector<Place> ignored;
            collect(changed, kRoot, fields, ignored);
            try {
                const Model model = parse_model(changed.dump());
                CHECK(model.attentions.size() + model.unsupported.size() > 0);
                ++outcomes.plans;
            } catch (const InvalidRequest& error) {
                INFO(error.what());
                const bool is_default = contains(error.value(), ", the default of ");
                CHECK((fields.contains(error.field()) || is_default));
                ++outcomes.errors;
            }
        }
    }
}

}  // namespace

TEST_CASE("whatever a number of a config is, an error is one of a field that the config has", "[model]") {
    Outcomes outcomes;
    for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
        if (entry.path().extension() != ".json") continue;
        INFO(entry.path().filename().string());
        mutate_numbers(json::parse(read_file(entry.path())), outcomes);
    }
    // What the published configs there do not have.
    for (
        const char* config : {
            R"({"model_type": "deci", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
                 "num_key_value_heads_per_layer": [8, 4]})",
            R"({"model_type": "openelm", "model_dim": 1280, "head_dim": 64, "num_transformer_layers": 2,
                 "hidden_size": 1280, "num_query_heads": [12, 16], "num_kv_heads": [3, 4]})",
            R"({"model_type": "gpt_neo", "hidden_size": 2048, "num_heads": 16, "num_layers": 2,
                 "attention_types": [[["global", "local"], 1]], "window_size": 256})",
            R"({"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 2,
                 "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2})",
            R"({"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12,
                 "num_hidden_layers": 4, "local_attention": 128, "global_attn_every_n_layers": 3})",
            R"({"model_type": "grok-1", "hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 8,
                 "num_hidden_layers": 2, "attn_output_multiplier": 0.08, "max_attn_value": 30.0})",
            R"({"model_type": "granite", "hidden_size": 4096, "num_attention_heads": 32,
                 "num_hidden_layers": 2, "attention_multiplier": 0.0078125})",
            R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120,
                 "num_attention_heads": 40, "num_hidden_layers": 4, "attention_chunk_size": 8192,
                 "attn_scale": 0.1, "floor_scale": 8192, "no_rope_layers": [1, 1, 1, 0]}})",
            R"({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "hidden_size": 2560,
                 "num_attention_heads": 8, "num_hidden_layers": 6, "sliding_window": 512,
                 "per_layer_config": {"1": {"head_dim": 512, "num_key_value_heads": 2}}}})",
            R"({"model_type": "gemma4_text", "hidden_size": 2560, "num_attention_heads": 8,
                 "num_hidden_layers": 8, "sliding_window": 512,
                 "num_kv_shared_layers": 3})",
            R"({"model_type": "glm_moe_dsa", "num_attention_heads": 64, "num_hidden_layers": 2,
                 "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
                 "index_topk": 8192})",
            R"({"model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64,
                 "num_hidden_layers": 1, "block_configs": [{"attention": {"n_heads_in_group": 8}}]})",
            R"({"model_type": "ministral3", "hidden_size": 4096, "num_attention_heads": 32,
                 "num_hidden_layers": 2, "rope_parameters": {"llama_4_scaling_beta": 0.1,
                 "original_max_position_embeddings": 16384}})",
            R"({"model_type": "zamba2", "hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 2,
                 "layers_block_type": ["mamba", "hybrid"]})",
            R"({"model_type": "jamba", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8,
                 "attn_layer_period": 8, "attn_layer_offset": 4})",
        }) {
        INFO(config);
        mutate_numbers(json::parse(config), outcomes);
    }
    CHECK(outcomes.plans > 500);
    CHECK(outcomes.errors > 500);
}

TEST_CASE("an error has the value that stands in the config and what it was made into", "[model]") {
    struct Bad {
        std::string config, field, value, accepted;
    };
    const auto in = [](const std::string& type, const std::string& members) {
        return R"({"model_type": ")" + type + R"(", "hidden_size": 4096, "num_attention_heads": 32,
                "num_hidden_layers": 2, )" +
               members + "}";
    };
    const Bad cases[] = {
        {in("gemma2", R"("attn_logit_softcapping": 1e300)"), "attn_logit_softcapping", "1e+300",
         "a finite number above 0 (from"},
        {in("gemma2", R"("query_pre_attn_scalar": 1e300)"), "query_pre_attn_scalar", "1e+300",
         "a value whose scale is a finite number above 0 (from 8.67e-19 to 1.15e+18); here it is 1e-150"},
        {in("granite", R"("attention_multiplier": 1e300)"), "attention_multiplier", "1e+300",
         "a finite number"},
        {in("grok-1", R"("num_key_value_heads": 8, "attn_output_multiplier": 1e300)"),
         "attn_output_multiplier", "1e+300", "a finite number"},
        {R"({"model_type": "llama", "hidden_size": 192000000, "num_attention_heads": 3000000,
             "num_hidden_layers": 2})",
         "num_attention_heads", "3000000", "an integer from 1 to 65536"},
        {R"({"text_config": {"hidden_size": 192000000, "n_head": 3000000, "num_hidden_layers": 2}})",
         "text_config.n_head", "3000000", "an integer from 1 to 65536"},
        {in("deci", R"("num_key_value_heads_per_layer": [8, 3])"), "num_key_value_heads_per_layer[1]", "3",
         "a divisor of the 32 query heads"},
        {in("openelm", R"("num_kv_heads": [8, 3000000])"), "num_kv_heads[1]", "3000000",
         "a divisor of the 32 query heads"},
        {R"({"model_type": "mistral", "hidden_size": 640, "num_attention_heads": 5, "num_hidden_layers": 2})",
         "num_key_value_heads", "8, the default of mistral,", "a divisor of the 5 query heads"},
        {R"({"text_config": {"n_embd": 100, "n_head": 8, "n_layer": 2}})", "text_config.n_embd", "100",
         "a multiple of the 8 heads"},
        {R"({"text_config": {"n_embd": 64, "n_head": 1, "n_layer": 20000}})", "text_config.n_layer", "20000",
         "at most 10000 layers"},
        {R"({"text_config": {"n_embd": 64, "n_head": 1, "n_layer": 2, "torch_dtype": "int3"}})",
         "text_config.torch_dtype", "\"int3\"", "bfloat16"},
    };
    for (const Bad& bad : cases) {
        INFO(bad.config);
        const InvalidRequest error = refused([&] { (void)parse_model(bad.config); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(error.value() == bad.value);
        CHECK(contains(error.accepted(), bad.accepted));
    }
}

TEST_CASE("a config.json of 3 MB is read, one of more than 16 MiB refused with its size", "[model]") {
    const auto of_size = [](std::size_t bytes) {
        std::string text = llama_with("");
        text.resize(bytes, ' ');
        return text;
    };
    CHECK(parse_model(of_size(3'100'000)).attentions.size() == 2);
    CHECK(parse_model(of_size(16 << 20)).attentions.size() == 2);
    const InvalidRequest error = refused([&] { (void)parse_model(of_size((16 << 20) + 1)); });
    CHECK(error.field() == "config.json");
    CHECK(contains(error.what(), "16777217 bytes"));
    CHECK(contains(error.what(), "at most 16777216"));
}
