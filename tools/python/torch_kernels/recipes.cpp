#include "recipes.hpp"

namespace attnsmith::torch_kernels {

using python::kBatch;
using python::kTensors;

Recipe::Recipe(const attnsmith_torch_recipe& from)
    : kernel(from.kernel),
      workspace_bytes(from.workspace_bytes),
      out_shape(from.out_shape, from.out_shape + from.out_rank),
      out_strides(from.out_strides, from.out_strides + from.out_rank),
      lse_shape(from.lse_shape, from.lse_shape + from.lse_rank),
      lse_strides(from.lse_rank) {
    std::int64_t step = 1;
    for (std::size_t axis = from.lse_rank; axis-- > 0;) {
        lse_strides[axis] = step;
        step *= lse_shape[axis] > 1 ? lse_shape[axis] : 1;
    }
    arguments_.tensors.size = sizeof arguments_.tensors;
    arguments_.batch.size = sizeof arguments_.batch;
    arguments_.batch.max_q_len = from.batch->max_q_len;
    arguments_.batch.max_kv_len = from.batch->max_kv_len;
    arguments_.places.fill(-1);
    std::size_t field = 0;
    for (const auto member : kTensors) add(from.tensors->*member, field++);
    for (const auto member : kBatch) add(from.batch->*member, field++);
}

void Recipe::add(const attnsmith_dl_tensor* tensor, std::size_t field) {
    if (tensor == nullptr) return;
    attnsmith_dl_tensor& copy = arguments_.memory[count_];
    copy = *tensor;
    auto& numbers = numbers_[count_];
    for (std::int32_t axis = 0; axis < tensor->ndim; ++axis) {
        numbers[static_cast<std::size_t>(axis)] = tensor->shape[axis];
        numbers[static_cast<std::size_t>(tensor->ndim + axis)] = tensor->strides[axis];
    }
    copy.shape = numbers.data();
    copy.strides = numbers.data() + tensor->ndim;
    arguments_.places[field] = static_cast<std::int8_t>(count_++);
}

void Recipe::copy_to(Arguments& to) const {
    to.tensors = arguments_.tensors;
    to.batch = arguments_.batch;
    to.places = arguments_.places;
    for (std::size_t i = 0; i < count_; ++i) to.memory[i] = arguments_.memory[i];
    std::size_t field = 0;
    for (const auto member : kTensors) {
        const std::int8_t place = to.places[field++];
        to.tensors.*member = place < 0 ? nullptr : &to.memory[static_cast<std::size_t>(place)];
    }
    for (const auto member : kBatch) {
        const std::int8_t place = to.places[field++];
        to.batch.*member = place < 0 ? nullptr : &to.memory[static_cast<std::size_t>(place)];
    }
}

const Recipe* Recipes::find(const Layout& layout) const {
    const auto found = recipes_.find(layout);
    return found == recipes_.end() ? nullptr : found->second.get();
}

Workspace* Recipes::workspace(std::int32_t device, void* stream) const {
    const auto found = workspaces_.find({device, stream});
    return found == workspaces_.end() ? nullptr : found->second.get();
}

void Recipes::add(const Layout& layout, std::unique_ptr<Recipe> recipe) {
    const std::unique_lock lock(mutex_);
    if (recipes_.size() >= kMost) recipes_.clear();
    recipes_.insert_or_assign(layout, std::move(recipe));
}

void Recipes::set_workspace(std::int32_t device, void* stream, void* data, std::size_t bytes) {
    const std::unique_lock lock(mutex_);
    std::unique_ptr<Workspace>& workspace = workspaces_[{device, stream}];
    if (!workspace) workspace = std::make_unique<Workspace>();
    workspace->data = data;
    workspace->bytes = bytes;
}

void Recipes::forget() {
    const std::unique_lock lock(mutex_);
    recipes_.clear();
    workspaces_.clear();
}

}  // namespace attnsmith::torch_kernels
