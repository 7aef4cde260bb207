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

void move_maps(const driver::Api& api, int device, const families::Bound& bound,
               const problem::OperandAddresses& addresses, std::byte* block) {
    if (bound.maps.empty()) return;
    const driver::ContextScope scope(api, device);
    for (const families::TensorMapRequest& map : bound.maps) {
        if (!map.operand) continue;
        const void* const data = at(addresses, *map.operand);
        if (data != map.data) driver::move_tensor_map(api, data, block + map.offset);
    }
}

}  // namespace attnsmith::engine
