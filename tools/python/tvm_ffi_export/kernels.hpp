// The kernels of this process by their requests, and the scratch memory of its streams.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "library.hpp"
#include "python/native/recipes.hpp"

namespace attnsmith::tvm_ffi {

using Kernel = std::shared_ptr<const attnsmith_kernel>;

struct Recipe : python::Recipe {
    Recipe(Kernel of_kernel, const attnsmith_tensors& tensors, const attnsmith_batch& batch,
           std::size_t bytes)
        : python::Recipe(of_kernel.get(), tensors, batch, bytes), kernel(std::move(of_kernel)) {}
    Kernel kernel;
};
using Recipes = python::Recipes<Recipe>;

// Prepared once each; sizes that are near share one. Where there are too many, finding one starts over. Their
// code stays loaded, as a captured graph needs it: the runtime keeps it.
class Kernels {
  public:
    // Throws a Failure.
    Kernel get(const Library& library, std::int32_t device, const std::string& request);

  private:
    static constexpr std::size_t kMost = 4096;

    std::mutex mutex_;
    std::map<std::pair<std::int32_t, std::string>, Kernel> kernels_;
};

// Memory for the workspaces of `recipes`, one for each GPU and stream. It comes from the allocator of
// tvm-ffi's environment where the caller has set one, as PyTorch's tensors do, else from the driver. What is
// outgrown stays, since a captured graph may use it: sizes double, so this is less than what is in use.
class Workspaces {
  public:
    // One of at least `bytes`. Throws a Failure.
    std::shared_ptr<python::Workspace> at_least(const Library& library, Recipes& recipes, std::int32_t device,
                                                void* stream, std::size_t bytes);

  private:
    attnsmith_buffer* allocate(const Library& library, std::int32_t device, std::size_t bytes);

    std::mutex mutex_;
    attnsmith_runtime* of_environment_ = nullptr;
};

}  // namespace attnsmith::tvm_ffi
