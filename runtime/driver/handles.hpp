// The driver's opaque handles, spelled as <cuda.h> spells them, so that code outside driver/ can carry them
// without including it. They are the same types as CUcontext, CUstream and so on.
#pragma once

#include <cstdint>

struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUgraphExec_st;
struct CUkern_st;
struct CUlib_st;
struct CUstream_st;

namespace attnsmith::driver {

using ContextHandle = CUctx_st*;
using EventHandle = CUevent_st*;
using FunctionHandle = CUfunc_st*;
using GraphHandle = CUgraphExec_st*;
using KernelHandle = CUkern_st*;
using LibraryHandle = CUlib_st*;
using StreamHandle = CUstream_st*;  // null is the legacy default stream
using DevicePointer = std::uint64_t;

}  // namespace attnsmith::driver
