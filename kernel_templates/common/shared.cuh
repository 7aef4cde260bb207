// Shared memory: addresses in its 32-bit window, and what is loaded from and stored to them.
#pragma once

#include "abi/integers.h"

namespace attnsmith {

struct SharedAddress {
    uint32 value;

    static __device__ SharedAddress of(const void* pointer) {
        return {static_cast<uint32>(__cvta_generic_to_shared(pointer))};
    }
    __device__ SharedAddress operator+(uint32 bytes) const { return {value + bytes}; }
};

// Four 8x8 matrices of 16-bit elements; each lane gives the address of one row. PTX: ldmatrix.
__device__ inline void load_matrices(uint32 (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row.value)
                 : "memory");
}

// Two of them; the first sixteen lanes give addresses.
__device__ inline void load_matrices(uint32 (&r)[2], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row.value)
                 : "memory");
}

__device__ inline void load_matrices_transposed(uint32 (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row.value)
                 : "memory");
}

__device__ inline void load_matrices_transposed(uint32 (&r)[2], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row.value)
                 : "memory");
}

// To shared memory, as load_matrices() reads them. PTX: stmatrix, from sm_90 on.
__device__ inline void store_matrices(SharedAddress row, const uint32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row.value), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// Not ordered by the compiler against other accesses to memory, so that several may be under way.
__device__ inline int64 load_shared_8_bytes(SharedAddress source) {
    int64 value;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(source.value));
    return value;
}

__device__ inline void load_shared_16_bytes(uint32 (&r)[4], SharedAddress source) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(source.value)
                 : "memory");
}

__device__ inline void store_shared(SharedAddress target, uint32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(target.value), "r"(value) : "memory");
}

__device__ inline void store_shared_8_bytes(SharedAddress target, uint64 value) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(target.value), "l"(value) : "memory");
}

__device__ inline void store_shared_16_bytes(SharedAddress target, int64 low, int64 high) {
    asm volatile("st.shared.v2.b64 [%0], {%1, %2};" ::"r"(target.value), "l"(low), "l"(high) : "memory");
}

__device__ inline void store_shared_16_bytes(SharedAddress target, const uint32 (&r)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target.value), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ inline void clear_shared_16_bytes(SharedAddress target) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(target.value), "r"(0) : "memory");
}

}  // namespace attnsmith
