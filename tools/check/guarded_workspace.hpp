// A workspace that shows what was written outside it.
#pragma once

#include <cstddef>

#include "attnsmith/runtime.hpp"

namespace attnsmith::check {

constexpr std::size_t kStatusBytes = 256;  // of a workspace, zeroed by its owner

// A workspace of exactly the promised size, between guard zones, all NaN but the status.
class GuardedWorkspace {
  public:
    GuardedWorkspace(const Runtime& runtime, std::size_t bytes);

    Workspace workspace() const;
    bool guards_intact() const;

  private:
    bool intact(std::size_t offset) const;

    std::size_t bytes_;
    Buffer buffer_;
};

}  // namespace attnsmith::check
