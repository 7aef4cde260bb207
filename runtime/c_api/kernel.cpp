// Preparing kernels, and what a kernel tells.
#include <chrono>
#include <memory>

#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/request.hpp"

namespace attnsmith::c_api {
namespace {

// Of a kernel or a set. A bound of 0 is its default.
template <class Owner>
std::size_t workspace_bytes(const Owner& owner, const attnsmith_workspace_bounds* bounds) {
    const attnsmith_workspace_bounds c = read_struct(bounds, "bounds");
    WorkspaceBounds read;
    if (c.batch != 0) read.batch = c.batch;
    if (c.q_tokens != 0) read.q_tokens = c.q_tokens;
    if (c.max_kv_len != 0) read.max_kv_len = c.max_kv_len;
    return owner.workspace_bytes(read);
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_prepare(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                 const attnsmith_sizes* sizes, std::int32_t device, attnsmith_kernel** kernel,
                                 attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        Runtime& of = required(runtime, "runtime").runtime;
        attnsmith_kernel*& result = required(kernel, "kernel");
        result = new attnsmith_kernel{of.prepare(read_spec(spec, "spec"), read_sizes(sizes), device)};
    });
}

void attnsmith_kernel_free(attnsmith_kernel* kernel) noexcept { delete kernel; }

attnsmith_code attnsmith_prepare_async(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                       const attnsmith_sizes* sizes, std::int32_t device,
                                       attnsmith_pending** pending, attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        Runtime& of = required(runtime, "runtime").runtime;
        attnsmith_pending*& result = required(pending, "pending");
        result = new attnsmith_pending{of.prepare_async(read_spec(spec, "spec"), read_sizes(sizes), device)};
    });
}

std::int32_t attnsmith_pending_ready(const attnsmith_pending* pending) noexcept {
    if (pending == nullptr) return 1;  // the next call refuses it at once
    return pending->kernel.wait_for(std::chrono::seconds(0)) == std::future_status::ready ? 1 : 0;
}

attnsmith_code attnsmith_pending_kernel(const attnsmith_pending* pending, attnsmith_kernel** kernel,
                                        attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const std::shared_future<Kernel>& future = required(pending, "pending").kernel;
        attnsmith_kernel*& result = required(kernel, "kernel");
        result = new attnsmith_kernel{future.get()};
    });
}

void attnsmith_pending_free(attnsmith_pending* pending) noexcept {
    if (pending != nullptr) pending->kernel.wait();
    delete pending;
}

attnsmith_code attnsmith_kernel_spec(const attnsmith_kernel* kernel, attnsmith_spec* spec,
                                     attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        const std::size_t size = checked_size(spec, "spec");
        write_spec(*spec, size, of.spec());
    });
}

std::int32_t attnsmith_kernel_device(const attnsmith_kernel* kernel) noexcept {
    return kernel == nullptr ? -1 : kernel->kernel.device();
}

attnsmith_code attnsmith_kernel_plan_json(const attnsmith_kernel* kernel, char** json,
                                          attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        char*& result = required(json, "json");
        result = copy_text(of.plan_json());
    });
}

attnsmith_code attnsmith_kernel_workspace_bytes(const attnsmith_kernel* kernel,
                                                const attnsmith_workspace_bounds* bounds, std::size_t* bytes,
                                                attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Kernel& of = required(kernel, "kernel").kernel;
        std::size_t& result = required(bytes, "bytes");
        result = workspace_bytes(of, bounds);
    });
}

attnsmith_code attnsmith_prepare_set(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                     std::int32_t device, attnsmith_kernel_set** set,
                                     attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        Runtime& of = required(runtime, "runtime").runtime;
        attnsmith_kernel_set*& result = required(set, "set");
        auto made = std::make_unique<attnsmith_kernel_set>();
        made->set = of.prepare_set(read_spec(spec, "spec"), device);
        for (const Kernel& kernel : made->set.kernels()) made->kernels.push_back({kernel});
        result = made.release();
    });
}

void attnsmith_kernel_set_free(attnsmith_kernel_set* set) noexcept { delete set; }

attnsmith_code attnsmith_kernel_set_pick(const attnsmith_kernel_set* set, const attnsmith_sizes* sizes,
                                         const attnsmith_kernel** kernel, attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const attnsmith_kernel_set& of = required(set, "set");
        const attnsmith_kernel*& result = required(kernel, "kernel");
        const Kernel& picked = of.set.pick(read_sizes(sizes));
        result = &of.kernels[static_cast<std::size_t>(&picked - of.set.kernels().data())];
    });
}

std::size_t attnsmith_kernel_set_size(const attnsmith_kernel_set* set) noexcept {
    return set == nullptr ? 0 : set->kernels.size();
}

const attnsmith_kernel* attnsmith_kernel_set_kernel(const attnsmith_kernel_set* set,
                                                    std::size_t index) noexcept {
    return index < attnsmith_kernel_set_size(set) ? &set->kernels[index] : nullptr;
}

attnsmith_code attnsmith_kernel_set_spec(const attnsmith_kernel_set* set, attnsmith_spec* spec,
                                         attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const attnsmith_kernel_set& of = required(set, "set");
        const std::size_t size = checked_size(spec, "spec");
        write_spec(*spec, size, of.set.spec());
    });
}

std::int32_t attnsmith_kernel_set_device(const attnsmith_kernel_set* set) noexcept {
    return set == nullptr ? -1 : set->set.device();
}

attnsmith_code attnsmith_kernel_set_workspace_bytes(const attnsmith_kernel_set* set,
                                                    const attnsmith_workspace_bounds* bounds,
                                                    std::size_t* bytes, attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const attnsmith_kernel_set& of = required(set, "set");
        std::size_t& result = required(bytes, "bytes");
        result = workspace_bytes(of.set, bounds);
    });
}
