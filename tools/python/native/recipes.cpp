#include "recipes.hpp"

namespace attnsmith::python {

Recipe::Recipe(const attnsmith_kernel* of_kernel, const attnsmith_tensors& tensors,
               const attnsmith_batch& batch, std::size_t bytes)
    : kernel(of_kernel), workspace_bytes(bytes) {
    arguments_.tensors.size = sizeof arguments_.tensors;
    arguments_.batch.size = sizeof arguments_.batch;
    arguments_.batch.max_q_len = batch.max_q_len;
    arguments_.batch.max_kv_len = batch.max_kv_len;
    arguments_.places.fill(-1);
    std::size_t field = 0;
    for (const auto member : kTensors) add(tensors.*member, field++);
    for (const auto member : kBatch) add(batch.*member, field++);
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

}  // namespace attnsmith::python
