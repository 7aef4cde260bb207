#include "cubins/cubin_entry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "attnsmith/version.hpp"
#include "cache/digest/digest.hpp"
#include "cache/digest/json_within.hpp"
#include "compiler/cubin_info.hpp"
#include "families/source.hpp"
#include "problem/json_text.hpp"
#include "settings/entry_times.hpp"

namespace attnsmith::engine {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kSchema = "attnsmith.entry/2";

constexpr const char* kSchemas = "attnsmith.entry/";  // of any release

constexpr std::string_view kNotAKernels = "its metadata is not a kernel's";
constexpr std::string_view kOfAnotherRelease = "its metadata is of another release";
// No kernel's metadata comes near.
constexpr int kDeepestMetadata = 16;

// What an entry's metadata says of its kernel.
struct Metadata {
    std::string entry;
    int sm = 0;
    planner::CompiledResources resources;
    std::string log;
};

// Json's own conversions take any number, and have no defined result for what the type does not hold.
template <class Integer>
Integer count_in(const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<Integer>::max())
        throw std::out_of_range("not a count");
    return value.get<Integer>();
}

bool is_of_another_release(const Json& metadata) {
    if (!metadata.is_object() || !metadata.contains("schema") || !metadata["schema"].is_string())
        return false;
    const auto& schema = metadata["schema"].get_ref<const std::string&>();
    return schema != kSchema && schema.starts_with(kSchemas);
}

// Why the fields that the entry was made from are not the key's; nothing if they are. What they are goes to
// `fields`.
std::optional<std::string> check_fields(const Json& metadata, const cache::Digest& key,
                                        std::vector<cache::HashedField>& fields) {
    auto parsed = cache::parse_fields(problem::one_line(metadata.at("key_fields")));
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

// Why the metadata is none of an entry of this key and toolchain; nothing if it is. What it says goes to
// `read`. Throws Json::exception and std::out_of_range where it is not a kernel's.
std::optional<std::string> check_metadata(const Json& metadata, const cache::Digest& key,
                                          const cache::Version& toolchain, Metadata& read) {
    read.entry = metadata.at("entry").get<std::string>();
    const Json& resources = metadata.at("resources");
    read.resources.registers_per_thread = count_in<int>(resources.at("registers_per_thread"));
    read.resources.spill_bytes = count_in<int>(resources.at("spill_bytes"));
    read.resources.shared_bytes = count_in<std::int64_t>(resources.at("shared_bytes"));
    const Json& compile_ms = metadata.at("compile_ms");
    if (!compile_ms.is_number()) throw std::out_of_range("no number");
    read.resources.compile_ms = compile_ms.get<double>();
    if (!(read.resources.compile_ms >= 0)) throw std::out_of_range("no duration");
    read.log = metadata.at("log").get<std::string>();
    std::vector<cache::HashedField> fields;
    if (auto fault = check_fields(metadata, key, fields)) return fault;
    const auto target = std::ranges::find(fields, "target", &cache::HashedField::label);
    if (target == fields.end() || metadata.at("target").get<std::string>() != target->value)
        return std::string(kNotAKernels);
    read.sm = sm_of_target(target->value);
    if (const auto sm = count_in<int>(metadata.at("sm")); sm != read.sm)
        return fmt::format("its metadata says sm {}, its target is {}", sm, target->value);
    if (const auto theirs = metadata.at("toolchain").get<std::string>(); theirs != toolchain.to_string())
        return fmt::format("it is filed under toolchain {}, its metadata says {}", toolchain.to_string(),
                           theirs);
    return std::nullopt;
}

// The one reading of an entry's metadata: nothing, and `read` is filled, where it is this key's.
std::optional<std::string> read_metadata(const Json& metadata, const cache::Digest& key,
                                         const cache::Version& toolchain, Metadata& read) {
    try {
        if (metadata.at("schema") != kSchema) return std::string(kNotAKernels);
        return check_metadata(metadata, key, toolchain, read);
    } catch (const Json::exception&) {
        return std::string(kNotAKernels);
    } catch (const std::out_of_range&) {
        return std::string(kNotAKernels);
    }
}

// Why the machine code is not what is said of it, be it by an entry's metadata or by who compiled it.
std::optional<std::string> check_code(std::span<const std::byte> bytes, const std::string& entry, int sm,
                                      std::int64_t shared_bytes) {
    const auto info = compiler::CubinInfo::parse(bytes);
    if (!info) return "it holds no cubin";
    // Files of an ABI that is not known here do not tell their SM.
    if (info->sm() != 0 && info->sm() != sm)
        return fmt::format("its machine code is for sm {}, not {}", info->sm(), sm);
    const auto shared = info->read_u32(families::kSharedBytesSymbol);
    if (!info->has_entry(entry) || !shared)
        return fmt::format("its machine code lacks {} or {}", entry, families::kSharedBytesSymbol);
    if (*shared != shared_bytes)
        return fmt::format("its machine code lays out {} bytes of shared memory, and is said to lay out {}",
                           *shared, shared_bytes);
    return std::nullopt;
}

}  // namespace

Json parse_metadata(const std::string& text) { return cache::parse_json_within(text, kDeepestMetadata); }

cache::Entry to_entry(const KernelSource& source, const Cubin& cubin, bool with_source) {
    const families::KernelConfig& kernel = source.kernel;
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
    metadata["key_fields"] = problem::parse_ordered_json(source.fields_json).value();
    if (with_source) metadata["source"] = source.unit.program.source;
    // A log could hold any bytes; an entry's metadata is UTF-8.
    return {problem::one_line(metadata), cubin.bytes};
}

ReadEntry from_entry(const cache::Candidate& candidate, cache::Entry entry) {
    const Json metadata = parse_metadata(entry.metadata);
    if (is_of_another_release(metadata)) return {nullptr, std::string(kOfAnotherRelease)};
    Metadata read;
    if (auto fault = read_metadata(metadata, candidate.key, candidate.version, read))
        return {nullptr, std::move(*fault)};
    auto cubin = std::make_shared<Cubin>();
    cubin->key = candidate.key;
    cubin->toolchain = candidate.version;
    cubin->bytes = std::move(entry.payload);
    cubin->entry = std::move(read.entry);
    cubin->resources = read.resources;
    cubin->resources.cubin_bytes = static_cast<std::int64_t>(cubin->bytes.size());
    cubin->log = std::move(read.log);
    return {std::move(cubin), {}};
}

ReadEntry read_for(const KernelSource& source, const cache::Candidate& candidate, cache::Entry entry) {
    ReadEntry read = from_entry(candidate, std::move(entry));
    if (!read.cubin) return read;
    if (auto wrong = what_is_wrong(source, *read.cubin)) return {nullptr, std::move(*wrong)};
    return read;
}

std::optional<std::string> find_fault(const cache::Digest& key, const cache::Version& toolchain,
                                      const cache::Entry& entry) {
    const Json metadata = parse_metadata(entry.metadata);
    if (is_of_another_release(metadata)) return std::nullopt;
    Metadata read;
    if (auto fault = read_metadata(metadata, key, toolchain, read)) return fault;
    return check_code(entry.payload, read.entry, read.sm, read.resources.shared_bytes);
}

std::optional<std::string> what_is_wrong(const KernelSource& source, const Cubin& cubin) {
    const families::KernelConfig& kernel = source.kernel;
    if (auto wrong = check_code(cubin.bytes, cubin.entry, kernel.sm, cubin.resources.shared_bytes))
        return wrong;
    if (cubin.entry != source.unit.entry)
        return fmt::format("the entry is called {}, not {}", cubin.entry, source.unit.entry);
    if (cubin.resources.shared_bytes != kernel.shared_bytes)
        return fmt::format("the kernel lays out {} bytes of shared memory, the plan {}",
                           cubin.resources.shared_bytes, kernel.shared_bytes);
    return std::nullopt;
}

}  // namespace attnsmith::engine
