// A workspace that shows what was written outside it.
#pragma once

#include <cstddef>

#include "attnsmith/runtime.hpp"

namespace attnsmith::check {

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
