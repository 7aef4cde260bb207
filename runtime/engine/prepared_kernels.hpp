// The kernels that a Runtime has prepared, by the problem as the caller gave it.
#pragma once

#include <cstddef>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "attnsmith/runtime.hpp"
#include "cache/files/per_process.hpp"

namespace attnsmith::engine {

// A problem on a device, as the caller gave it: looked up without validating it again.
struct PreparedKey {
    int device = 0;
    AttentionSpec spec;
    PlanSizes sizes;
    bool operator==(const PreparedKey&) const = default;
};

// Thread-safe. A child made by fork starts with an empty table, for what the driver loaded is of no use to
// it.
class PreparedKernels {
  public:
    std::optional<Kernel> find(const PreparedKey& key) const;
    // Keeps the kernel, unless another thread was faster. What is kept now.
    Kernel keep(const PreparedKey& key, const Kernel& kernel);
    std::size_t size() const;

  private:
    struct KeyHash {
        std::size_t operator()(const PreparedKey& key) const noexcept;
    };
    struct Table {
        std::shared_mutex mutex;
        std::unordered_map<PreparedKey, Kernel, KeyHash> kernels;
    };
    cache::PerProcess<Table> table_;
};

}  // namespace attnsmith::engine
