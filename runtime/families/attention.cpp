#include "families/attention.hpp"

#include <fmt/format.h>

#include "problem/request/problem.hpp"

namespace attnsmith::families {

abi::StorageBytes storage_bytes(const AttentionConstants& constants) {
    const auto bytes = [](DType dtype) { return static_cast<std::int32_t>(size_of(dtype)); };
    return {.query = bytes(constants.query),
            .key_value = bytes(constants.key_value),
            .output = bytes(constants.output),
            .position = bytes(constants.position)};
}

AttentionConstants attention_constants(const AttentionSpec& spec) {
    return {.query = spec.dtype,
            .key_value = problem::kv_dtype(spec),
            .output = problem::output_dtype(spec),
            .position = problem::position_dtype(spec),
            .index = spec.index_dtype,
            .head_dim_qk = static_cast<int>(problem::key_dim(spec)),
            .head_dim_vo = static_cast<int>(problem::value_dim(spec)),
            .latent = problem::is_latent(spec),
            .paged = spec.kv == KvStorage::paged,
            .softcap = spec.softcap.has_value(),
            .alibi = spec.alibi,
            .absolute_cuts = spec.consistency == Consistency::bitwise,
            .scale_blocks = static_cast<int>(problem::scale_blocks(spec)),
            .value_scale = is_fp8(problem::kv_dtype(spec)) && problem::scale_blocks(spec) == 0};
}

std::optional<std::string> tensor_core_refusal(const AttentionSpec& spec) {
    if (spec.precision == Precision::high)
        return "rounds P to 16 bits before the second product; precision \"high\" keeps it in fp32";
    return std::nullopt;
}

std::optional<std::string> stored_keys_refusal(const AttentionSpec& spec) {
    if (const DType stored = problem::kv_dtype(spec); stored != spec.dtype)
        return fmt::format("reads keys and values of {}, as q is; kv_dtype is {}", to_string(spec.dtype),
                           to_string(stored));
    return std::nullopt;
}

std::optional<std::string> changing_shape_refusal(const AttentionSpec& spec) {
    if (spec.consistency == Consistency::bitwise)
        return "divides keys as sizes have it; consistency \"bitwise\" takes cuts at absolute positions";
    return std::nullopt;
}

std::string attention_name(Backend backend, const AttentionConstants& constants, std::string_view storage,
                           int alignment) {
    const std::string head_dims = constants.latent
                                      ? fmt::format("{}+{}", constants.head_dim_vo, constants.head_dim_qk)
                                      : fmt::format("{}x{}", constants.head_dim_qk, constants.head_dim_vo);
    std::string stored =
        constants.key_value == constants.query ? "" : fmt::format(" kv {}", to_string(constants.key_value));
    if (constants.scale_blocks > 0)
        stored += constants.latent && constants.position == constants.query
                      ? fmt::format(" {} scales a token", constants.scale_blocks)
                      : " scales of tokens";
    return fmt::format(
        "{} {} {} {} {}{} {}x{} stages {}{}{}{}{}{}", constants.latent ? "mla" : "attention",
        to_string(backend), attnsmith::to_string(constants.query), head_dims, storage, stored,
        constants.tile_q, constants.tile_kv, constants.stages, constants.softcap ? " softcap" : "",
        constants.alibi ? " alibi" : "", constants.absolute_cuts ? " bitwise" : "",
        constants.output == constants.query ? "" : " to fp32", name_suffix(alignment, constants.index));
}

std::string tile_label(Backend backend, int tile_q, int tile_kv, int stages) {
    return fmt::format("{} {}x{} stages {}", to_string(backend), tile_q, tile_kv, stages);
}

std::string name_suffix(int alignment, DType index) {
    std::string text;
    if (alignment != 16) text += fmt::format(" align {}", alignment);
    if (index == DType::int64) text += " int64";
    return text;
}

}  // namespace attnsmith::families
