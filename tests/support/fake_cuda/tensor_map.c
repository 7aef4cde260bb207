/* Tensor maps. */
#include <string.h>

#include "internal.h"

_Static_assert(sizeof(struct fake_cuda_tensor_map) <= sizeof(CUtensorMap), "a map holds its record");

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                       void* address, const cuuint64_t* extents, const cuuint64_t* strides,
                                       const cuuint32_t* box, const cuuint32_t* element_strides,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    struct fake_cuda_tensor_map record = {.address = (uint64_t)address,
                                          .rank = rank,
                                          .type = type,
                                          .interleave = interleave,
                                          .swizzle = swizzle,
                                          .promotion = promotion,
                                          .fill = fill};
    if (fake_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (rank < 1 || rank > 5 || address == NULL || (uint64_t)address % 16 != 0 || (uint64_t)map % 64 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const cuuint32_t bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
    if (bytes == 2 && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
        return CUDA_ERROR_INVALID_VALUE;
    if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * bytes > 128) return CUDA_ERROR_INVALID_VALUE;
    if (box[0] * bytes % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t axis = 0; axis < rank; ++axis) {
        if (extents[axis] < 1 || extents[axis] > (uint64_t)1 << 32 || box[axis] < 1 || box[axis] > 256 ||
            element_strides[axis] < 1 || element_strides[axis] > 8)
            return CUDA_ERROR_INVALID_VALUE;
        if (axis > 0 && (strides[axis - 1] % 16 != 0 || strides[axis - 1] >= (uint64_t)1 << 40))
            return CUDA_ERROR_INVALID_VALUE;
        record.extents[axis] = extents[axis];
        record.box[axis] = box[axis];
        if (axis > 0) record.strides[axis - 1] = strides[axis - 1];
    }
    memcpy(map, &record, sizeof record);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
    struct fake_cuda_tensor_map record;
    if (fake_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (map == NULL || address == NULL || (uint64_t)address % 16 != 0 || (uint64_t)map % 64 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&record, map, sizeof record);
    record.address = (uint64_t)address;
    memcpy(map, &record, sizeof record);
    return CUDA_SUCCESS;
}
