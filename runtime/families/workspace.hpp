// What a workspace holds: the status and other zeroed bytes, where the op has a status, and then the regions
// that its steps ask for.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "problem/ceil_div.hpp"

namespace attnsmith::families {

// Steps that ask for the same region share it: one writes it, another reads it.
enum class Region : std::uint8_t {
    partial_o,   // what chunks or shares of the keys found: [rows][head_dim_vo] floats
    partial_ml,  // their maxima and sums: [rows][2] floats
    widened_k,   // dequantised keys, as abi/widen_arguments.h describes them
    widened_v,   // dequantised values
};

class WorkspaceLayout {
  public:
    static constexpr std::int64_t kAlignment = 256;

    // Bytes from the start of the workspace.
    struct Place {
        std::int64_t offset = 0;  // a multiple of kAlignment
        std::int64_t bytes = 0;   // 0: no step asked for the region
    };

    WorkspaceLayout() = default;
    // `zeroed_bytes` come before all regions; a multiple of kAlignment.
    explicit WorkspaceLayout(std::int64_t zeroed_bytes) : bytes_(zeroed_bytes) {}

    // REQUIRES: a region that was asked for before has the same size.
    void add(Region region, std::int64_t bytes) {
        Place& place = places_[static_cast<std::size_t>(region)];
        assert(place.bytes == 0 || place.bytes == bytes);
        if (place.bytes > 0) return;
        place = {bytes_, bytes};
        bytes_ += problem::ceil_div(bytes, kAlignment) * kAlignment;
    }

    const Place& operator[](Region region) const { return places_[static_cast<std::size_t>(region)]; }
    // The region's memory; null where no step asked for it.
    void* address(void* workspace, Region region) const {
        const Place& place = (*this)[region];
        return place.bytes == 0 ? nullptr : static_cast<std::byte*>(workspace) + place.offset;
    }
    std::int64_t bytes() const { return bytes_; }  // enough for any smaller bounds, too

  private:
    std::array<Place, static_cast<std::size_t>(Region::widened_v) + 1> places_{};
    std::int64_t bytes_ = 0;
};

}  // namespace attnsmith::families
