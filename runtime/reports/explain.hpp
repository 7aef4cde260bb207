// Why a kernel is in the cache or not: the labelled fields of its key, and which of them the nearest entry
// has otherwise.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cubins/cubins.hpp"
#include "engine/runtime_access.hpp"
#include "reports/kernel_list.hpp"
#include "reports/key_fields.hpp"

namespace attnsmith::engine {

struct NearestEntry {
    KernelEntry kernel;
    std::vector<FieldDifference> differences;
};

struct Explanation {
    std::string name;
    int sm = 0;
    cache::Digest key;
    std::vector<KeyField> fields;
    std::vector<KernelEntry> entries;     // of the key, as they were listed
    std::vector<std::string> faults;      // of each: why it cannot be used; empty where it can
    bool hit = false;                     // one of them can be used
    std::optional<NearestEntry> nearest;  // of a miss, the entry that shares the most fields
};

struct Explained {
    std::vector<Explanation> kernels;
    std::vector<cache::Status> unreadable;  // of the cache: a miss may lie there
};

// One of each source; `stored` is what list_kernels() gives.
std::vector<Explanation> explain(std::span<const KernelSource> sources, std::span<const KernelEntry> stored);
// Nothing where no entry has the key: a digest alone does not say what it is of.
std::optional<Explanation> explain(const cache::Digest& key, std::span<const KernelEntry> stored);

// Throws as find_key() does.
Explanation explain_key(const cache::Store& store, std::string_view digits, const KernelList& stored);

// Explains every kernel that planning could choose. What no kernel serves goes to `refused`. Throws
// InvalidRequest.
Explained explain(const RuntimeImpl& runtime, std::span<const AttentionSpec> specs, std::span<const int> sms,
                  std::vector<PrewarmRefusal>& refused);

}  // namespace attnsmith::engine
