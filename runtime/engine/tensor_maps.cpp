#include "engine/tensor_maps.hpp"

#include <span>

#include "driver/device.hpp"
#include "driver/tensor_map.hpp"

namespace attnsmith::engine {

void encode_maps(const driver::Api& api, int device, families::Bound& bound) {
    if (bound.maps.empty()) return;
    const driver::ContextScope scope(api, device);  // which encoding a map needs
    for (const families::TensorMapRequest& map : bound.maps) {
        const auto rank = static_cast<std::size_t>(map.rank);
        driver::encode_tensor_map(api,
                                  {.data = map.data,
                                   .dtype = map.dtype,
                                   .extents = std::span(map.extents).first(rank),
                                   .strides = std::span(map.strides).first(rank - 1),
                                   .box = std::span(map.box).first(rank)},
                                  bound.arguments.bytes().subspan(map.offset).data());
    }
}

}  // namespace attnsmith::engine
