#include "reports/explain.hpp"

#include <algorithm>
#include <iterator>

#include "cubins/cubin_entry.hpp"
#include "cubins/needed_kernels.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith::engine {
namespace {

// An entry, with its fields read once for all the kernels that are compared with it.
struct Stored {
    const KernelEntry* kernel;
    FieldsByLabel fields;  // empty where the metadata is another's
};

std::vector<Stored> read_stored(std::span<const KernelEntry> kernels) {
    std::vector<Stored> stored;
    for (const KernelEntry& kernel : kernels)
        stored.push_back({&kernel, by_label(stored_fields(kernel.entry.metadata))});
    return stored;
}

std::optional<NearestEntry> nearest_entry(const std::vector<KeyField>& fields,
                                          std::span<const Stored> stored) {
    const auto here = by_label(fields);
    std::optional<NearestEntry> nearest;
    for (const Stored& other : stored) {
        if (other.fields.empty()) continue;
        std::vector<FieldDifference> found = differences(here, other.fields);
        if (!nearest || found.size() < nearest->differences.size())
            nearest = NearestEntry{*other.kernel, std::move(found)};
    }
    return nearest;
}

std::vector<KernelEntry> entries_of(const cache::Digest& key, std::span<const KernelEntry> stored) {
    std::vector<KernelEntry> entries;
    std::ranges::copy_if(stored, std::back_inserter(entries),
                         [&](const KernelEntry& kernel) { return kernel.entry.key == key; });
    return entries;
}

// Why what Cubins::find() is offered is passed over; empty where it is not. Without a source, as far as the
// entry itself tells.
std::string fault_of(const cache::Store& store, const cache::ListedEntry& listed,
                     const KernelSource* source) {
    const cache::Candidate candidate{listed.key, listed.version, listed.layer, listed.path};
    cache::Result<cache::Entry> entry = store.look_at(candidate);
    if (!entry) return entry.status().message;
    if (auto fault = find_fault(listed.key, listed.version, *entry)) return std::move(*fault);
    if (source != nullptr) return read_for(*source, candidate, std::move(entry).value()).fault;
    return from_entry(candidate, std::move(entry).value()).fault;
}

void look_at_entries(const cache::Store& store, const KernelSource* source, Explanation& one) {
    for (const KernelEntry& kernel : one.entries) one.faults.push_back(fault_of(store, kernel.entry, source));
    one.hit = std::ranges::find(one.faults, std::string()) != one.faults.end();
}

}  // namespace

std::vector<Explanation> explain(std::span<const KernelSource> sources, std::span<const KernelEntry> stored) {
    const std::vector<Stored> others = read_stored(stored);
    std::vector<Explanation> explanations;
    for (const KernelSource& source : sources) {
        Explanation& one = explanations.emplace_back();
        one.name = source.kernel.name();
        one.sm = source.kernel.sm;
        one.key = source.key;
        one.fields = read_fields(source.fields_json);
        one.entries = entries_of(source.key, stored);
        if (one.entries.empty()) one.nearest = nearest_entry(one.fields, others);
    }
    return explanations;
}

std::optional<Explanation> explain(const cache::Digest& key, std::span<const KernelEntry> stored) {
    Explanation one;
    one.key = key;
    one.entries = entries_of(key, stored);
    if (one.entries.empty()) return std::nullopt;
    one.name = one.entries.front().name;
    one.sm = one.entries.front().sm;
    one.fields = stored_fields(one.entries.front().entry.metadata);
    return one;
}

Explanation explain_key(const cache::Store& store, std::string_view digits, const KernelList& stored) {
    Explanation one = explain(find_key(digits, stored), stored.kernels).value();
    look_at_entries(store, nullptr, one);
    return one;
}

Explained explain(const RuntimeImpl& runtime, std::span<const AttentionSpec> specs, std::span<const int> sms,
                  std::vector<PrewarmRefusal>& refused) {
    std::vector<KernelSource> sources;
    for (const families::KernelConfig& kernel : needed_kernels(specs, sms, runtime.tuning, refused))
        sources.push_back(runtime.cubins.source_of(kernel));
    KernelList stored = list_kernels(runtime.cubins.store());
    Explained explained{explain(sources, stored.kernels), std::move(stored.unreadable)};
    for (std::size_t i = 0; i < sources.size(); ++i)
        look_at_entries(runtime.cubins.store(), &sources[i], explained.kernels[i]);
    return explained;
}

}  // namespace attnsmith::engine
