// What an op is: its requests, its tensors and its steps. Each op has a folder with these; the registry is
// the list of them. Ops know requests and tensors, and neither each other nor kernels.
#pragma once

#include <cstdint>
#include <span>

#include "attnsmith/error.hpp"
#include "ops/operands.hpp"
#include "problem/request/ops.hpp"
#include "problem/role.hpp"

namespace attnsmith::ops {

using problem::Role;

// A launch that has too many CTAs, or too much for them to count.
struct TooLarge {
    std::int64_t items, most;  // what the CTAs count, and how much of it they can
    std::int64_t rows, heads;  // query rows of all heads, and the heads
    std::int64_t tile_rows;    // of the main step's kernel
};

struct OpTraits {
    const problem::OpRequest* request;

    // What a caller binds.
    const char* tensors;  // as messages call them
    Op tensors_of;        // the kOp of that struct
    // REQUIRES: operands.op == tensors_of, here and below. Throws InvalidRequest.
    problem::BoundShape (*check_tensors)(const problem::Problem& problem, const Operands& operands);
    // Throws InvalidRequest where the workspace is memory of one of the tensors. Null of an op without a
    // workspace.
    void (*check_workspace)(const problem::Problem& problem, void* data, std::int64_t bytes,
                            const Operands& operands) = nullptr;

    // Its kernels, in the order of their launches. That of `main` is chosen; the others are launched where it
    // needs them.
    std::span<const Role> steps;
    Role main;
    bool divides_keys =
        false;  // main kernels are ranked with the best KV split of each; otherwise there is only one
    bool has_status = false;  // a workspace begins with a status
    bool is_exact = false;    // the result's bits are specified, so there is no tolerance
    InvalidRequest (*too_large)(const TooLarge& launch);
};

// REQUIRES: the op is supported.
const OpTraits& op_traits(Op op);

}  // namespace attnsmith::ops
