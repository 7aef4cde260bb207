// What tests compare of a planned model, and the configs that they start from.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"

namespace attnsmith::test {

#ifdef ATTNSMITH_MODELS_DIR
inline const std::filesystem::path kModels = ATTNSMITH_MODELS_DIR;
#else
inline const std::filesystem::path kModels = std::filesystem::path(__FILE__).parent_path() / "../../models";
#endif

inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path);
    INFO(path.string());
    REQUIRE(file.good());
    return {std::istreambuf_iterator<char>(file), {}};
}

// What is compared of one attention; "full_attention/prefill" has one for each phase.
struct Attention {
    std::string name;
    std::int64_t layers;
    std::int64_t q_heads, kv_heads, head_dim_qk, head_dim_vo;
    double scale;
    std::optional<std::int64_t> window_left = {};
    std::optional<double> softcap = {};
    bool sink = false;
    bool alibi = false;
    Mask mask = Mask::causal;
    std::optional<std::int64_t> window_right = {};
    std::optional<std::int64_t> attention_chunk = {};

    bool operator==(const Attention&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Attention& a) {
    return out << a.name << " x" << a.layers << " " << a.q_heads << "/" << a.kv_heads << " " << a.head_dim_qk
               << "/" << a.head_dim_vo << " scale " << a.scale << " window " << a.window_left.value_or(-1)
               << ".." << a.window_right.value_or(-1) << " softcap " << a.softcap.value_or(0) << " sink "
               << a.sink << " alibi " << a.alibi << " " << to_string(a.mask) << " chunk "
               << a.attention_chunk.value_or(0);
}

inline std::vector<Attention> summary(const Model& model) {
    std::vector<Attention> all;
    for (const ModelAttention& attention : model.attentions) {
        const AttentionSpec& spec = attention.request.spec;
        CHECK(attention.name.substr(attention.name.find('/') + 1) == attention.phase);
        // Keys of op mla have all columns, of which the latent's are the values.
        const bool latent = spec.op == Op::mla;
        all.push_back({attention.name, attention.layers, spec.q_heads, spec.kv_heads,
                       latent ? spec.head_dim_ckv + spec.head_dim_kpe : spec.head_dim_qk,
                       latent ? spec.head_dim_ckv : spec.head_dim_vo, *spec.scale, spec.window_left,
                       spec.softcap, spec.sink, spec.alibi, spec.mask, spec.window_right,
                       spec.attention_chunk});
    }
    return all;
}

// An attention in both phases.
inline std::vector<Attention> both(Attention attention) {
    Attention decode = attention;
    attention.name += "/prefill";
    decode.name += "/decode";
    return {attention, decode};
}

inline std::vector<Attention> both(const Attention& first, const Attention& second) {
    std::vector<Attention> all = both(first);
    for (Attention& attention : both(second)) all.push_back(std::move(attention));
    return all;
}

inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

// A small decoder with more members.
inline std::string decoder_with(const std::string& type, const std::string& members) {
    return "{" + type +
           R"("hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 12,
               "torch_dtype": "bfloat16")" +
           (members.empty() ? "" : ", " + members) + "}";
}
inline std::string llama_with(const std::string& members) {
    return decoder_with(R"("model_type": "llama", )", members);
}
// A config of no type, all of whose fields are read by their names.
inline std::string untyped_with(const std::string& members) { return decoder_with("", members); }
inline const Attention kLlama = {"full_attention", 12, 8, 8, 128, 128, rsqrt(128)};

// A small model of a type that says its sizes and nothing else.
inline std::string of_type(const std::string& type, const std::string& members = "") {
    return R"({"model_type": ")" + type +
           R"(", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 12)" + members + "}";
}

inline bool has_note(const Model& model, const std::string& part) {
    for (const ModelAttention& attention : model.attentions) {
        bool found = false;
        for (const std::string& note : attention.notes) found = found || contains(note, part);
        if (!found) return false;
    }
    return !model.attentions.empty();
}

// The fields that a model's reader is warned of.
inline std::vector<std::string> warned(const Model& model, WarningKind kind) {
    std::vector<std::string> fields;
    for (const ModelWarning& warning : model.warnings) {
        if (warning.kind == kind) fields.push_back(warning.field);
    }
    return fields;
}

}  // namespace attnsmith::test
