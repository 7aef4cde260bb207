#include "models/stored_kv.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "problem/request/problem.hpp"

namespace attnsmith::problem {
namespace {

using nlohmann::json;

struct KvScheme {
    DType dtype;
    KvScale scale;
};

bool is_word(const json& object, std::string_view name, std::string_view word) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() && found->get<std::string>() == word;
}

// compressed-tensors and modelopt write {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic":
// false}.
std::optional<KvScheme> scheme_of_object(const json& object) {
    const auto bits = object.find("num_bits");
    const auto dynamic = object.find("dynamic");
    if (bits == object.end() || *bits != 8 || !is_word(object, "type", "float")) return std::nullopt;
    if (dynamic != object.end() && *dynamic != false) return std::nullopt;
    if (const auto symmetric = object.find("symmetric"); symmetric != object.end() && *symmetric != true)
        return std::nullopt;
    if (is_word(object, "strategy", "attn_head")) return KvScheme{DType::e4m3, KvScale::head};
    if (object.contains("strategy") && !is_word(object, "strategy", "tensor")) return std::nullopt;
    return KvScheme{DType::e4m3, KvScale::tensor};
}

std::optional<KvScheme> scheme_of(const json& value) {
    if (value.is_object()) return scheme_of_object(value);
    if (value.is_string() && (value == "FP8" || value == "fp8"))
        return KvScheme{DType::e4m3, KvScale::tensor};
    return std::nullopt;
}

}  // namespace

void set_stored_kv(ModelReader& model, const ModelOptions& options, bool bidirectional, AttentionSpec& spec) {
    if (bidirectional) {
        if (spec.kv_dtype && *spec.kv_dtype != spec.dtype)
            model.note("an encoder keeps no keys: planned with keys and values of the dtype");
        spec.kv_dtype.reset();
        spec.kv_scale = KvScale::none;
        return;
    }
    const auto given = model.inherited(
        {"quantization_config.kv_cache_scheme", "compression_config.kv_cache_scheme",
         "quantization_config.kv_cache_quant_algo", "quantization_config.quantization.kv_cache_quant_algo",
         "quantization_config.kv_cache_quant_method"});
    if (!given || options.kv_dtype) return;
    if (const std::optional<KvScheme> scheme = scheme_of(given->value)) {
        spec.kv_dtype = scheme->dtype;
        if (!options.kv_scale) spec.kv_scale = scheme->scale;
        model.note(fmt::format("{}: planned with kv_dtype {}, kv_scale {}", given->field,
                               to_string(*spec.kv_dtype), to_string(spec.kv_scale)));
        return;
    }
    model.warn(
        WarningKind::approximated, given->field,
        fmt::format("the model comes with quantised keys and values of a kind that is not read ({}): planned "
                    "with KV of the dtype; say what they are by kv_dtype and kv_scale",
                    model.shown(*given)));
}

AttentionSpec with_expanded_keys(ModelReader& model, AttentionSpec spec) {
    if (!is_fp8(kv_dtype(spec))) return spec;
    model.note(
        "keys and values that a prefill makes of latents are planned in the dtype, latents in kv_dtype");
    spec.kv_dtype.reset();
    spec.kv_scale = KvScale::none;
    return spec;
}

}  // namespace attnsmith::problem
