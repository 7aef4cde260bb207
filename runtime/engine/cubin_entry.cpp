#include "engine/cubin_entry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "attnsmith/version.hpp"
#include "cache/digest.hpp"
#include "compiler/cubin_info.hpp"
#include "engine/cache_report.hpp"

namespace attnsmith::engine {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kSchema = "attnsmith.entry/2";

// Json's own conversion takes any number, and has no defined result for what the type does not hold.
template <class Integer>
Integer count_in(const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<Integer>::max())
        throw std::out_of_range("not a count");
    return value.get<Integer>();
}

constexpr std::string_view kNotAKernels = "its metadata is not a kernel's";

// Why the fields that the entry was made from are not the key's; nothing if they are. What they are goes to
// `fields`.
std::optional<std::string> check_fields(const Json& metadata, const cache::Digest& key,
                                        std::vector<cache::HashedField>& fields) {
    auto parsed = cache::parse_fields(metadata.at("key_fields").dump());
    if (!parsed) return std::string(kNotAKernels);
    fields = std::move(*parsed);
    const cache::Digest their_key = cache::digest_of(std::span<const cache::HashedField>(fields));
    if (their_key == key) return std::nullopt;
    return fmt::format("it holds another kernel, that of key {}", their_key.hex());
}

// 90 of sm_90a.
int sm_of_target(std::string_view target) {
    int sm = 0;
    if (target.starts_with("sm_")) std::from_chars(target.data() + 3, target.data() + target.size(), sm);
    return sm;
}

// Files of an ABI that is not known here do not tell their SM.
std::optional<std::string> check_sm(const compiler::CubinInfo& info, int sm) {
    if (info.sm() == 0 || info.sm() == sm) return std::nullopt;
    return fmt::format("its machine code is for sm {}, not {}", info.sm(), sm);
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

ReadEntry from_entry(const cache::Candidate& candidate, cache::Entry entry) {
    const Json metadata = Json::parse(entry.metadata, nullptr, false);
    auto cubin = std::make_shared<Cubin>();
    std::vector<cache::HashedField> fields;
    try {
        if (metadata.at("schema") != kSchema) return {nullptr, "its metadata is of another release"};
        cubin->entry = metadata.at("entry").get<std::string>();
        const Json& resources = metadata.at("resources");
        cubin->resources.registers_per_thread = count_in<int>(resources.at("registers_per_thread"));
        cubin->resources.spill_bytes = count_in<int>(resources.at("spill_bytes"));
        cubin->resources.shared_bytes = count_in<std::int64_t>(resources.at("shared_bytes"));
        cubin->resources.compile_ms = metadata.at("compile_ms").get<double>();
        cubin->log = metadata.at("log").get<std::string>();
        if (auto fault = check_fields(metadata, candidate.key, fields)) return {nullptr, std::move(*fault)};
    } catch (const Json::exception&) {
        return {nullptr, std::string(kNotAKernels)};
    } catch (const std::out_of_range&) {
        return {nullptr, std::string(kNotAKernels)};
    }
    cubin->key = candidate.key;
    cubin->toolchain = candidate.version;
    cubin->bytes = std::move(entry.payload);
    cubin->resources.cubin_bytes = static_cast<std::int64_t>(cubin->bytes.size());
    return {std::move(cubin), {}};
}

std::optional<std::string> find_fault(const cache::Digest& key, const cache::Entry& entry) {
    const Json metadata = Json::parse(entry.metadata, nullptr, false);
    if (!metadata.is_object() || !metadata.contains("schema") || metadata["schema"] != kSchema)
        return std::nullopt;
    try {
        std::vector<cache::HashedField> fields;
        if (auto fault = check_fields(metadata, key, fields)) return fault;
        const auto info = compiler::CubinInfo::parse(entry.payload);
        if (!info) return "it holds no cubin";
        const auto target = std::ranges::find(fields, "target", &cache::HashedField::label);
        if (target == fields.end()) return std::string(kNotAKernels);
        return check_sm(*info, sm_of_target(target->value));
    } catch (const Json::exception&) {
        return std::string(kNotAKernels);
    }
}

std::optional<std::string> what_is_wrong(const KernelSource& source, const Cubin& cubin) {
    const planner::KernelConfig& kernel = source.kernel;
    if (cubin.entry != source.unit.entry)
        return fmt::format("the entry is called {}, not {}", cubin.entry, source.unit.entry);
    const auto info = compiler::CubinInfo::parse(cubin.bytes);
    if (!info) return "it is no cubin";
    if (auto wrong = check_sm(*info, kernel.sm)) return wrong;
    const auto shared = info->read_u32(compiler::kSharedBytesSymbol);
    if (!info->has_entry(cubin.entry) || !shared)
        return fmt::format("it lacks {} or {}", cubin.entry, compiler::kSharedBytesSymbol);
    if (*shared != kernel.shared_bytes || cubin.resources.shared_bytes != kernel.shared_bytes)
        return fmt::format("the kernel lays out {} bytes of shared memory, the plan {}", *shared,
                           kernel.shared_bytes);
    return std::nullopt;
}

}  // namespace attnsmith::engine
