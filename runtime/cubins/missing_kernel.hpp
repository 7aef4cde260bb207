// A kernel that no cache has, where none may be compiled.
#pragma once

#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "cache/digest/digest.hpp"
#include "planner/plan.hpp"
#include "settings/environment.hpp"

namespace attnsmith::engine {

// Thrown where only the kernel is known; what the caller gets is a KernelMissing.
class CubinMissing : public Error {
  public:
    CubinMissing(const cache::Digest& key, std::vector<std::string> passed_over, bool refused_by_driver)
        : Error("the cache does not have " + key.hex()),
          key_(key),
          passed_over_(std::move(passed_over)),
          refused_by_driver_(refused_by_driver) {}

    const cache::Digest& key() const noexcept { return key_; }
    // Why what there is was passed over, each by its path; empty where there is nothing.
    const std::vector<std::string>& passed_over() const noexcept { return passed_over_; }
    // There is a whole cubin, which another driver may take.
    bool refused_by_driver() const noexcept { return refused_by_driver_; }

  private:
    cache::Digest key_;
    std::vector<std::string> passed_over_;
    bool refused_by_driver_;
};

// With the command that builds all kernels of the plan's spec for its SM, where the settings look for them;
// an empty one where no directory is used, for then no command helps.
KernelMissing missing_kernel(const Settings& settings, const planner::Plan& plan,
                             const CubinMissing& missing);

}  // namespace attnsmith::engine
