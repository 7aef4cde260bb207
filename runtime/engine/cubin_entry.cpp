#include "engine/cubin_entry.hpp"

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "attnsmith/version.hpp"
#include "engine/cache_report.hpp"

namespace attnsmith::engine {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kSchema = "attnsmith.entry/1";

// Json's own conversion takes any number, and has no defined result for what the type does not hold.
template <class Integer>
Integer count_in(const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<Integer>::max())
        throw std::out_of_range("not a count");
    return value.get<Integer>();
}

}  // namespace

cache::Entry to_entry(const KernelSource& source, const Cubin& cubin, bool with_source) {
    const planner::KernelConfig& kernel = source.kernel;
    Json metadata;
    metadata["schema"] = kSchema;
    metadata["library"] = ATTNSMITH_VERSION;
    metadata["compiled"] = utc_text(std::chrono::system_clock::now());
    metadata["name"] = kernel.name();
    metadata["entry"] = cubin.entry;
    metadata["sm"] = kernel.sm;
    metadata["target"] = kernel.target;
    metadata["toolchain"] = cubin.toolchain.to_string();
    metadata["resources"] = {{"registers_per_thread", cubin.resources.registers_per_thread},
                             {"spill_bytes", cubin.resources.spill_bytes},
                             {"shared_bytes", cubin.resources.shared_bytes}};
    metadata["compile_ms"] = cubin.resources.compile_ms;
    metadata["log"] = cubin.log;
    metadata["key_fields"] = Json::parse(source.fields_json);
    if (with_source) metadata["source"] = source.unit.program.source;
    // A log could hold any bytes; an entry's metadata is UTF-8.
    return {metadata.dump(-1, ' ', false, Json::error_handler_t::replace), cubin.bytes};
}

std::shared_ptr<const Cubin> from_entry(const cache::Candidate& candidate, cache::Entry entry) {
    const Json metadata = Json::parse(entry.metadata, nullptr, false);
    auto cubin = std::make_shared<Cubin>();
    try {
        if (metadata.at("schema") != kSchema) return nullptr;
        cubin->entry = metadata.at("entry").get<std::string>();
        const Json& resources = metadata.at("resources");
        cubin->resources.registers_per_thread = count_in<int>(resources.at("registers_per_thread"));
        cubin->resources.spill_bytes = count_in<int>(resources.at("spill_bytes"));
        cubin->resources.shared_bytes = count_in<std::int64_t>(resources.at("shared_bytes"));
        cubin->resources.compile_ms = metadata.at("compile_ms").get<double>();
        cubin->log = metadata.at("log").get<std::string>();
    } catch (const Json::exception&) {
        return nullptr;
    } catch (const std::out_of_range&) {
        return nullptr;
    }
    cubin->key = candidate.key;
    cubin->toolchain = candidate.version;
    cubin->bytes = std::move(entry.payload);
    cubin->resources.cubin_bytes = static_cast<std::int64_t>(cubin->bytes.size());
    return cubin;
}

}  // namespace attnsmith::engine
