#include "planner/attention_base.hpp"

namespace attnsmith::planner {

std::optional<std::string> tensor_core_refusal(const AttentionSpec& spec) {
    if (spec.precision == Precision::high)
        return "rounds P to 16 bits before the second product; precision \"high\" keeps it in fp32";
    if (spec.consistency == Consistency::bitwise)
        return "its tiles and its KV split change with the sizes; consistency \"bitwise\" pins both";
    return std::nullopt;
}

KernelConfig attention_base(const AttentionSpec& spec, const DeviceTraits& device) {
    KernelConfig kernel;
    kernel.sm = device.sm;
    kernel.dtype = spec.dtype;
    kernel.index_dtype = spec.index_dtype;
    kernel.head_dim_qk = static_cast<int>(spec.head_dim_qk);
    kernel.head_dim_vo = static_cast<int>(spec.head_dim_vo);
    kernel.alignment = spec.alignment;
    kernel.paged = spec.kv == KvStorage::paged;
    kernel.softcap = spec.softcap.has_value();
    kernel.alibi = spec.alibi;
    return kernel;
}

}  // namespace attnsmith::planner
