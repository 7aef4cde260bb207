// What a workspace holds: the status and other zeroed bytes, where the op has a status, and then regions that
// its steps ask for by name.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "problem/ceil_div.hpp"

namespace attnsmith::families {

// The names of regions. Steps that ask for the same name share the region: one writes it, another reads it.
namespace regions {
// What chunks or shares of the keys found: [rows][head_dim_vo] floats, and [rows][2] maxima and sums.
inline constexpr std::string_view kPartialO = "partial_o", kPartialMl = "partial_ml";
// Dequantised keys and values, as abi/widen_arguments.h describes them.
inline constexpr std::string_view kWidenedK = "widened_k", kWidenedV = "widened_v";
}  // namespace regions

struct WorkspaceRegion {
    std::string_view name{};
    std::int64_t offset = 0;  // in bytes, from the start of the workspace; a multiple of kAlignment
    std::int64_t bytes = 0;
};

class WorkspaceLayout {
  public:
    static constexpr std::int64_t kAlignment = 256;

    WorkspaceLayout() = default;
    // `zeroed_bytes` come before all regions; a multiple of kAlignment.
    explicit WorkspaceLayout(std::int64_t zeroed_bytes) : bytes_(zeroed_bytes) {}

    // REQUIRES: a region that is there already has the same size.
    void add(std::string_view name, std::int64_t bytes) {
        if (const WorkspaceRegion* const known = find(name)) {
            assert(known->bytes == bytes);
            return;
        }
        assert(count_ < regions_.size());
        regions_[count_++] = {name, bytes_, bytes};
        bytes_ += problem::ceil_div(bytes, kAlignment) * kAlignment;
    }

    // Null where no step asked for it.
    const WorkspaceRegion* find(std::string_view name) const {
        for (const WorkspaceRegion& region : regions())
            if (region.name == name) return &region;
        return nullptr;
    }
    // The region's memory; null where no step asked for it.
    void* address(void* workspace, std::string_view name) const {
        const WorkspaceRegion* const region = find(name);
        return region == nullptr ? nullptr : static_cast<std::byte*>(workspace) + region->offset;
    }
    std::span<const WorkspaceRegion> regions() const { return {regions_.data(), count_}; }
    std::int64_t bytes() const { return bytes_; }  // enough for any smaller bounds, too

  private:
    std::array<WorkspaceRegion, 8> regions_{};
    std::size_t count_ = 0;
    std::int64_t bytes_ = 0;
};

}  // namespace attnsmith::families
