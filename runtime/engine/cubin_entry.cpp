#include "engine/cubin_entry.hpp"

#include <nlohmann/json.hpp>

namespace attnsmith::engine {

using Json = nlohmann::ordered_json;

cache::Entry to_entry(const KernelSource& source, const Cubin& cubin, const std::string& compile_log) {
    const planner::KernelConfig& kernel = source.kernel;
    Json metadata;
    metadata["name"] = kernel.name();
    metadata["entry"] = cubin.entry;
    metadata["sm"] = kernel.sm;
    metadata["target"] = kernel.target;
    metadata["toolchain"] = cubin.toolchain.to_string();
    metadata["resources"] = {{"registers_per_thread", cubin.resources.registers_per_thread},
                             {"spill_bytes", cubin.resources.spill_bytes},
                             {"shared_bytes", cubin.resources.shared_bytes}};
    metadata["compile_ms"] = cubin.resources.compile_ms;
    metadata["log"] = compile_log;
    metadata["key_fields"] = Json::parse(source.fields_json);
    metadata["source"] = source.unit.program.source;
    // A log could hold any bytes; an entry's metadata is UTF-8.
    return {metadata.dump(-1, ' ', false, Json::error_handler_t::replace), cubin.bytes};
}

std::shared_ptr<const Cubin> from_entry(const cache::Candidate& candidate, cache::Entry entry) {
    const Json metadata = Json::parse(entry.metadata, nullptr, false);
    auto cubin = std::make_shared<Cubin>();
    try {
        cubin->entry = metadata.at("entry").get<std::string>();
        const Json& resources = metadata.at("resources");
        cubin->resources.registers_per_thread = resources.at("registers_per_thread").get<int>();
        cubin->resources.spill_bytes = resources.at("spill_bytes").get<int>();
        cubin->resources.shared_bytes = resources.at("shared_bytes").get<std::int64_t>();
        cubin->resources.compile_ms = metadata.at("compile_ms").get<double>();
    } catch (const Json::exception&) {
        return nullptr;
    }
    cubin->key = candidate.key;
    cubin->toolchain = candidate.version;
    cubin->bytes = std::move(entry.payload);
    cubin->resources.cubin_bytes = static_cast<std::int64_t>(cubin->bytes.size());
    return cubin;
}

}  // namespace attnsmith::engine
