#include "cli/plan/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "cli/program/output.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string word(const Json& object, const char* field) { return object.at(field).get<std::string>(); }
std::int64_t number(const Json& object, const char* field) { return object.at(field).get<std::int64_t>(); }

bool is_set(const Json& object, const char* field) {
    const Json value = object.value(field, Json());
    return !value.is_null() && value != false && value != "standard";
}

std::string heads_text(const Json& request) {
    if (word(request, "op") == "mla")
        return fmt::format("{}, latents of {} and {} columns of the position, {} query heads",
                           word(request, "dtype"), number(request, "head_dim_ckv"),
                           number(request, "head_dim_kpe"), number(request, "q_heads"));
    const auto qk = number(request, "head_dim_qk");
    const auto vo = number(request, "head_dim_vo");
    return fmt::format("{}, head_dim {}, {} query and {} key/value heads", word(request, "dtype"),
                       qk == vo ? std::to_string(qk) : fmt::format("{}/{}", qk, vo),
                       number(request, "q_heads"), number(request, "kv_heads"));
}

std::string storage_text(const Json& request) {
    std::string text = word(request, "kv") + " KV";
    if (word(request, "kv") == "paged") {
        const std::string order = request.contains("page_order") ? word(request, "page_order") + " " : "";
        text += fmt::format(" ({}pages of {})", order, number(request, "page_size"));
    }
    return text;
}

std::string plain_text(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    // Six digits tell 1/sqrt(128) from its neighbours; JSON has them all.
    return value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : problem::one_line(value);
}

// What a program binds otherwise than most: said where it is not the default.
std::string call_text(const Json& request) {
    constexpr AttentionSpec kDefault;
    std::string text;
    if (const std::string dtype = request.value("index_dtype", ""); dtype != to_string(kDefault.index_dtype))
        text += fmt::format(", {} indices", dtype);
    if (const auto bytes = number(request, "alignment"); bytes != kDefault.alignment)
        text += fmt::format(", alignment {}", bytes);
    return text;
}

std::string features_text(const Json& request) {
    std::string text = word(request, "mask") + " mask";
    const auto add_value = [&](const std::string& name) {
        if (!is_set(request, name.c_str())) return;
        const bool follows_dtype = name == "o_dtype" || name == "kv_dtype";
        if (follows_dtype && word(request, name.c_str()) == word(request, "dtype")) return;
        text += fmt::format(", {} {}", name, plain_text(request.at(name)));
    };
    for (const problem::RequestField& field : problem::request_fields())
        if (problem::is_absent_by_default(field)) add_value(std::string(field.name));
    if (request.value("kv_scale", "none") != "none") add_value("kv_scale");
    add_value("precision");
    add_value("consistency");
    for (const problem::RequestField& field : problem::request_fields()) {
        const std::string name(field.name);
        if (field.type == problem::FieldType::boolean && is_set(request, name.c_str())) text += ", " + name;
    }
    return text + call_text(request);
}

std::string merge_text(const Json& request) {
    return fmt::format("merge of {} states, head_dim {}, {} query heads{}; batch {}, q_len {}",
                       word(request, "dtype"), number(request, "head_dim_vo"), number(request, "q_heads"),
                       is_set(request, "lse") ? ", lse" : "", number(request, "batch"),
                       number(request, "q_len"));
}

// What is appended, and where to; then what is done to it on the way, where anything is.
std::string append_text(const Json& request) {
    const bool latent = request.contains("head_dim_ckv");
    const std::string columns =
        latent ? fmt::format("latents of {} and {} columns of the position", number(request, "head_dim_ckv"),
                             number(request, "head_dim_kpe"))
               : fmt::format("head_dim {}/{}, {} key/value heads", number(request, "head_dim_qk"),
                             number(request, "head_dim_vo"), number(request, "kv_heads"));
    std::string text = fmt::format("append of {}, {}, {} query heads, to {} in {}, slots by {}",
                                   word(request, "dtype"), columns, number(request, "q_heads"),
                                   storage_text(request), word(request, "kv_dtype"), word(request, "slots"));
    if (word(request, "kv_scale") != "none") text += ", kv_scale " + word(request, "kv_scale");
    if (word(request, "rope") != "none")
        text += fmt::format(", rope {} of {} columns by {}", word(request, "rope"),
                            number(request, "rotary_dim"), word(request, "rope_table"));
    for (const char* step : {"q_norm", "k_norm", "v_norm", "check_slots"})
        if (is_set(request, step)) text += fmt::format(", {}", step);
    if (word(request, "q_dtype") != word(request, "dtype"))
        text += fmt::format(", q_dtype {}", word(request, "q_dtype"));
    return text + call_text(request) +
           fmt::format("; batch {}, q_len {}", number(request, "batch"), number(request, "q_len"));
}

// Of an op without a text of its own.
std::string fields_text(const Json& request) {
    std::string text;
    for (const auto& [name, value] : request.items())
        text += name == "op" ? plain_text(value) : fmt::format(", {} {}", name, plain_text(value));
    return text;
}

std::string request_text(const Json& request) {
    const std::string op = word(request, "op");
    if (op == "merge") return merge_text(request);
    if (op == "append") return append_text(request);
    if (op != "attention" && op != "mla") return fields_text(request);
    return fmt::format("{}, {}, {}; batch {}, q_len {}, kv_len {}", heads_text(request),
                       features_text(request), storage_text(request), number(request, "batch"),
                       number(request, "q_len"), number(request, "kv_len"));
}

std::string cache_text(const Json& cache) {
    if (word(cache, "state") != "hit") return word(cache, "state");
    return fmt::format("hit ({})", word(cache, "toolchain"));
}

// What the compiler said, where it is known, else what is predicted.
std::string registers_text(const Json& resources) {
    const bool compiled = resources.contains("compiled");
    if (!compiled) return fmt::format("<= {}", number(resources.at("predicted"), "registers_per_thread"));
    const Json& known = resources.at("compiled");
    const auto spills = number(known, "spill_bytes");
    return fmt::format("{}{}", number(known, "registers_per_thread"),
                       spills > 0 ? fmt::format(", spills {} B", spills) : std::string());
}

std::string tiles_text(const Json& kernel) {
    if (!kernel.contains("tile_kv")) return std::to_string(number(kernel, "tile_q"));
    return fmt::format("{}x{}", number(kernel, "tile_q"), number(kernel, "tile_kv"));
}

std::string kernels_text(const Json& kernels) {
    Table table("<<<<<>>>>><");
    table.add({"role", "kernel", "target", "tiles", "tuning", "stages", "warps", "registers", "shared",
               "CTAs/SM", "cache"});
    std::string grids;
    for (const Json& kernel : kernels) {
        const Json& resources = kernel.at("resources");
        const Json& predicted = resources.at("predicted");
        table.add({word(kernel, "role"), word(kernel, "name"), word(kernel, "target"), tiles_text(kernel),
                   kernel.value("tuning", ""),
                   kernel.contains("stages") ? std::to_string(number(kernel, "stages")) : "",
                   std::to_string(number(kernel, "warps")), registers_text(resources),
                   std::to_string(number(predicted, "shared_bytes")),
                   std::to_string(number(predicted, "ctas_per_sm")), cache_text(kernel.at("cache"))});
        grids += fmt::format("  grid      {}: {}\n", word(kernel, "role"), word(kernel, "grid"));
    }
    return table.text("  ") + grids;
}

std::string split_text(const Json& split) {
    const std::string policy = word(split, "policy");
    const std::string cuts = policy == "absolute" ? "absolute cuts" : "";
    if (!split.contains("workspace_bytes")) return policy == "absolute" ? cuts + ", not divided" : policy;
    const std::string workspace = human_bytes(static_cast<std::uint64_t>(number(split, "workspace_bytes")));
    if (split.contains("shares"))
        return fmt::format("{}equal shares for {}, workspace {}", cuts.empty() ? "" : cuts + ", ",
                           counted(static_cast<std::uint64_t>(number(split, "shares")), "CTA"), workspace);
    if (!split.contains("chunk")) return fmt::format("{}; workspace of widened keys {}", policy, workspace);
    return fmt::format("chunks of {} keys: {} at these sizes, workspace {}", number(split, "chunk"),
                       number(split, "splits"), workspace);
}

std::string model_text(const Json& model, Reasons reasons) {
    std::string text = fmt::format("{}, {}\n", printable(word(model, "name")),
                                   counted(static_cast<std::uint64_t>(number(model, "layers")), "layer"));
    if (reasons == Reasons::none) return text;
    for (const Json& note : model.at("notes")) {
        text += fmt::format("  note      {}\n", printable(note.get<std::string>()));
    }
    return text;
}

// Candidates that share a reason share a line.
std::string refusals_text(const char* label, const Json& rejected, Reasons reasons) {
    if (reasons == Reasons::none) return {};
    if (reasons == Reasons::count) {
        if (rejected.empty()) return {};
        return fmt::format("  {:<8}  {}; -v or --json has the reasons\n", label,
                           counted(rejected.size(), "candidate"));
    }
    std::vector<std::pair<std::string, std::string>> lines;  // reason, candidates
    for (const Json& refusal : rejected) {
        const std::string reason = word(refusal, "reason");
        const auto same = std::ranges::find(lines, reason, [](const auto& line) { return line.first; });
        if (same == lines.end()) {
            lines.emplace_back(reason, word(refusal, "candidate"));
        } else {
            same->second += ", " + word(refusal, "candidate");
        }
    }
    std::string text;
    for (const auto& [reason, candidates] : lines)
        text += fmt::format("  {:<8}  {}: {}\n", label, candidates, reason);
    return text;
}

}  // namespace

std::string plan_text(const Json& plan, Reasons reasons) {
    std::string text;
    if (plan.contains("model")) text += model_text(plan.at("model"), reasons);
    const Json& device = plan.at("device");
    const Json& numerics = plan.at("numerics");
    text += fmt::format("  request   {}\n", request_text(plan.at("request")));
    text += fmt::format("  device    sm {}, {}, {} SMs\n", word(device, "sm"),
                        printable(word(device, "name")), number(device, "sm_count"));
    text += kernels_text(plan.at("kernels"));
    text += fmt::format("  KV split  {}\n", split_text(plan.at("split_kv")));
    if (plan.contains("instead")) {
        const Json& instead = plan.at("instead");
        const auto bytes = static_cast<std::uint64_t>(number(instead, "above_widened_bytes"));
        text += fmt::format("  instead   {}, where bounds have more than {} of widened keys\n",
                            instead.at("kernels").at(0).get<std::string>(), human_bytes(bytes));
    }
    text += fmt::format("  numerics  accumulates in {}, ", word(numerics, "accumulate"));
    if (numerics.at("atol") == 0 && numerics.at("rtol") == 0)
        text += "bit for bit as specified\n";
    else
        text += fmt::format("within {} + {} * |o|\n", problem::one_line(numerics.at("atol")),
                            problem::one_line(numerics.at("rtol")));
    return text + refusals_text("rejected", plan.at("rejected"), reasons) +
           refusals_text("unused", plan.at("unused"), reasons);
}

}  // namespace attnsmith::cli
