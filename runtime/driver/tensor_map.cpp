#include "driver/tensor_map.hpp"

#include <cstring>

#include "driver/table.hpp"

namespace attnsmith::driver {

static_assert(sizeof(CUtensorMap) == kTensorMapBytes);

namespace {

// What L2 is to fetch of memory at a time: no more than a box's rows have next to each other. Beyond that
// there is another head's, which may not be asked for while it is there, so that memory would be read twice.
CUtensorMapL2promotion promotion(const MappedTensor& tensor) {
    std::uint64_t bytes = tensor.extents[0] * static_cast<std::uint64_t>(size_of(tensor.dtype));
    if (tensor.strides.size() > 0 && tensor.strides[0] == bytes) bytes *= tensor.box[1];
    if (bytes >= 256) return CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    return bytes >= 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
}

}  // namespace

void encode_tensor_map(const Api& api, const MappedTensor& tensor, void* map) {
    constexpr std::uint32_t kEveryElement[kMaxTensorMapRank] = {1, 1, 1, 1, 1};
    const CUtensorMapDataType type = size_of(tensor.dtype) == 1    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : tensor.dtype == DType::fp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMap encoded;  // its alignment depends on the toolkit's version
    api.check(api.table().tensor_map_encode(&encoded, type, static_cast<cuuint32_t>(tensor.extents.size()),
                                            const_cast<void*>(tensor.data), tensor.extents.data(),
                                            tensor.strides.data(), tensor.box.data(), kEveryElement,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            promotion(tensor), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "cuTensorMapEncodeTiled");
    std::memcpy(map, &encoded, sizeof encoded);
}

void move_tensor_map(const Api& api, const void* data, void* map) {
    CUtensorMap moved;
    std::memcpy(&moved, map, sizeof moved);
    api.check(api.table().tensor_map_replace(&moved, const_cast<void*>(data)), "cuTensorMapReplaceAddress");
    std::memcpy(map, &moved, sizeof moved);
}

}  // namespace attnsmith::driver
