// Products of tiles on Hopper's tensor cores, 64 rows a warpgroup, asynchronous. PTX: wgmma.mma_async
// m64nNk16.
//
// A kernel's Config states the products that it consists of:
//
//     ATTNSMITH_WGMMA_REGISTERS(multiply_queries, bf16, 128, 8, KEYS, SET)
//     ATTNSMITH_WGMMA_TILE(multiply_queries, f16, 64, 4, KEYS, SET)
//
// are member functions that issue all instructions of d = A B, or of d += A B, for n columns of B and so many
// steps of 16 columns of A:
//
//     static void multiply_queries(float (&d)[n / 8][4], A, uint32 b);
//
//   A            REGISTERS: const uint32 (&a)[steps][4], as OperandA has them. TILE: uint32 a, as b.
//   b            row_descriptor() or column_descriptor() of B's tile (common/wgmma.cuh)
//   KEYS         B is stored as its columns are: a row of the tile is a column of B, and a step is 32 bytes
//                of a panel's row. VALUES: by rows, a step is 16 of them.
//   SET, ADD     whether d is overwritten or added to
//
// Panels of a tile that steps cross have the rows that the Config states: tile_kv of B, tile_q of A. All is
// one asm statement: NVRTC takes a tenth longer where the hundred registers pass from one statement to the
// next.
#pragma once

#include "abi/wgmma.h"
#include "common/asm_operands.cuh"

// clang-format off

// Where a step begins, from its tile's start in units of 16 bytes; `panel`: from one panel to the next.
#define ATTNSMITH_WGMMA_AT_KEYS(s, panel) "(" #s ">>2)*" panel "+(" #s "&3)*2"
#define ATTNSMITH_WGMMA_AT_VALUES(s, panel) "(" #s "*128)"
#define ATTNSMITH_WGMMA_TRANSPOSED_KEYS "0"
#define ATTNSMITH_WGMMA_TRANSPOSED_VALUES "1"
#define ATTNSMITH_WGMMA_SUMS_SET(x) "=f"(x)
#define ATTNSMITH_WGMMA_SUMS_ADD(x) "+f"(x)
#define ATTNSMITH_WGMMA_ADDS_SET "0"
#define ATTNSMITH_WGMMA_ADDS_ADD "1"

// Behind sums and the A in registers come b, a, the upper half of descriptors, and from one panel to the next of
// B and of A; `end` is the first of these fours.
#define ATTNSMITH_WGMMA_B(end) ATTNSMITH_OPERAND(0, ATTNSMITH_NUMBERS(end))
#define ATTNSMITH_WGMMA_A(end) ATTNSMITH_OPERAND(1, ATTNSMITH_NUMBERS(end))
#define ATTNSMITH_WGMMA_UPPER(end) ATTNSMITH_OPERAND(2, ATTNSMITH_NUMBERS(end))
#define ATTNSMITH_WGMMA_B_PANEL(end) ATTNSMITH_OPERAND(3, ATTNSMITH_NUMBERS(end))
#define ATTNSMITH_WGMMA_A_PANEL(end) ATTNSMITH_OPERAND(0, ATTNSMITH_NUMBERS(ATTNSMITH_NEXT(end)))

// A matrix descriptor, so far from the start of its tile.
#define ATTNSMITH_WGMMA_DESCRIPTOR(name, start, at, end) \
    "add.s32 start, " start ", " at "; mov.b64 " name ", {start, " ATTNSMITH_WGMMA_UPPER(end) "}; "
#define ATTNSMITH_WGMMA_INSTRUCTION(type, n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type \
    " {" ATTNSMITH_SUMS_PTX_##n "}, "

#define ATTNSMITH_WGMMA_STEP_REGISTERS(s, type, n, B, end) \
    ATTNSMITH_WGMMA_DESCRIPTOR("b", ATTNSMITH_WGMMA_B(end), ATTNSMITH_WGMMA_AT_##B(s, ATTNSMITH_WGMMA_B_PANEL(end)), end) \
    ATTNSMITH_WGMMA_INSTRUCTION(type, n) \
    "{" ATTNSMITH_FOUR_OF(ATTNSMITH_NUMBERS(ATTNSMITH_BEHIND_##s(ATTNSMITH_SUMS_END_##n))) \
    "}, b, add, 1, 1, " ATTNSMITH_WGMMA_TRANSPOSED_##B "; "
#define ATTNSMITH_WGMMA_STEP_TILE(s, type, n, B, end) \
    ATTNSMITH_WGMMA_DESCRIPTOR("b", ATTNSMITH_WGMMA_B(end), ATTNSMITH_WGMMA_AT_##B(s, ATTNSMITH_WGMMA_B_PANEL(end)), end) \
    ATTNSMITH_WGMMA_DESCRIPTOR("a", ATTNSMITH_WGMMA_A(end), ATTNSMITH_WGMMA_AT_KEYS(s, ATTNSMITH_WGMMA_A_PANEL(end)), end) \
    ATTNSMITH_WGMMA_INSTRUCTION(type, n) "a, b, add, 1, 1, 0, " ATTNSMITH_WGMMA_TRANSPOSED_##B "; "

#define ATTNSMITH_WGMMA_ASM(step, type, n, steps, B, D, end, a_registers, a_start) \
    asm volatile("{.reg .pred add; .reg .b32 start; .reg .b64 a, b; setp.ne.b32 add, " ATTNSMITH_WGMMA_ADDS_##D ", 0; " \
                 ATTNSMITH_STEPS_##steps(step, "setp.ne.b32 add, 1, 0; ", type, n, B, end) "}" \
                 : ATTNSMITH_SUMS_##n(ATTNSMITH_WGMMA_SUMS_##D) \
                 : a_registers "r"(b), a_start, "n"(attnsmith::abi::kWgmmaDescriptorUpper), \
                   "n"(tile_kv * attnsmith::abi::kPanelBytes / 16), "n"(tile_q * attnsmith::abi::kPanelBytes / 16))

#define ATTNSMITH_WGMMA_COMMA ,
#define ATTNSMITH_WGMMA_REGISTERS(name, type, n, steps, B, D) \
    static __device__ void name(float (&d)[n / 8][4], const uint32 (&a)[steps][4], uint32 b) { \
        ATTNSMITH_WGMMA_ASM(ATTNSMITH_WGMMA_STEP_REGISTERS, type, n, steps, B, D, \
                            ATTNSMITH_BEHIND_##steps(ATTNSMITH_SUMS_END_##n), ATTNSMITH_A_##steps ATTNSMITH_WGMMA_COMMA, "n"(0)); \
    }
#define ATTNSMITH_WGMMA_TILE(name, type, n, steps, B, D) \
    static __device__ void name(float (&d)[n / 8][4], uint32 a, uint32 b) { \
        ATTNSMITH_WGMMA_ASM(ATTNSMITH_WGMMA_STEP_TILE, type, n, steps, B, D, ATTNSMITH_SUMS_END_##n, , "r"(a)); \
    }

// clang-format on
