// DLPack tensors and the structs that hold them, as what they are in C++.
#pragma once

#include <string_view>

#include "attnsmith/attnsmith.h"
#include "attnsmith/batch.hpp"
#include "attnsmith/runtime.hpp"

namespace attnsmith::c_api {

// `name` is what errors call the tensor, `device` the ordinal that CUDA memory must be on. Null is an absent
// tensor. What is checked here is the description itself; that it fits its role is checked where it is bound.
Tensor read_tensor(const attnsmith_dl_tensor* given, std::string_view name, int device);

Batch read_batch(const attnsmith_batch* given, int device);  // null: the default
Workspace read_workspace(const attnsmith_workspace* given);
inline Stream stream_of(void* stream) { return static_cast<Stream>(stream); }

}  // namespace attnsmith::c_api
