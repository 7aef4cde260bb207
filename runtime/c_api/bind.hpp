// Binding an op's tensors: what the files of ops/ share.
#pragma once

#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/tensors.hpp"

namespace attnsmith::c_api {

// The error in the words of DLPack, which calls a rank ndim.
[[noreturn]] void rethrow_in_dlpack_words(const InvalidRequest& error);

// `read` makes the op's tensors of those of the C ABI.
template <auto read, class Given>
Call bind(const Kernel& kernel, const Given* given, const attnsmith_batch* batch,
          const attnsmith_workspace* workspace) {
    const auto tensors = read(given, kernel.device());
    const Batch bound_batch = read_batch(batch, kernel.device());
    try {
        return workspace == nullptr ? kernel.bind(tensors, bound_batch)
                                    : kernel.bind(tensors, bound_batch, read_workspace(workspace));
    } catch (const InvalidRequest& error) {
        rethrow_in_dlpack_words(error);
    }
}

// A null workspace: the call has its own.
template <auto read, class Given>
attnsmith_code bind(const attnsmith_kernel* kernel, const Given* tensors, const attnsmith_batch* batch,
                    const attnsmith_workspace* workspace, attnsmith_call** call, attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        attnsmith_call*& result = required(call, "call");
        result = new attnsmith_call{bind<read>(of, tensors, batch, workspace)};
    });
}

enum class RunWorkspace { required, optional };

template <auto read, RunWorkspace need = RunWorkspace::required, class Given>
attnsmith_code run(const attnsmith_kernel* kernel, const Given* tensors, const attnsmith_batch* batch,
                   const attnsmith_workspace* workspace, void* stream, attnsmith_error** error) {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        if (need == RunWorkspace::required) required(workspace, "workspace");
        bind<read>(of, tensors, batch, workspace).launch(stream_of(stream));
    });
}

}  // namespace attnsmith::c_api
