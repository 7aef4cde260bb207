#include "recipes.hpp"

namespace attnsmith::python {

Recipe::Recipe(const attnsmith_kernel* of_kernel, const attnsmith_tensors& tensors,
               const attnsmith_batch& batch, std::size_t bytes)
    : kernel_(of_kernel), workspace_bytes_(bytes) {
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

bool Recipe::launch(const Library& library, const Arguments& arguments, Workspace& workspace,
                    void* stream) const {
    const auto data_of = [&](std::size_t field) -> void* {
        const std::int8_t place = arguments.places[field];
        return place < 0 ? nullptr : arguments.memory[static_cast<std::size_t>(place)].data;
    };
    std::array<void*, kBatch.size()> batch;
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = data_of(kTensors.size() + i);

    const std::lock_guard in_order(workspace.mutex);
    if (workspace.bytes == 0 || workspace.bytes < workspace_bytes_) return false;
    const std::lock_guard lock(mutex_);
    attnsmith_error* error = nullptr;
    attnsmith_code code = ATTNSMITH_OK;
    if (bound_.call == nullptr || bound_.workspace != workspace.data || bound_.batch != batch) {
        bound_.reset();
        const attnsmith_workspace memory{sizeof memory, workspace.data, workspace.bytes};
        code = library.bind(kernel_, &arguments.tensors, &arguments.batch, &memory, &bound_.call, &error);
        bound_.free = library.call_free;
        bound_.workspace = workspace.data;
        bound_.batch = batch;
    }
    if (code == ATTNSMITH_OK) {
        std::array<void*, kTensors.size()> addresses;
        for (std::size_t field = 0; field < addresses.size(); ++field) addresses[field] = data_of(field);
        const attnsmith_tensor_addresses at = tensor_addresses(addresses);
        code = library.launch_at(bound_.call, &at, stream, &error);
    }
    if (error != nullptr) library.error_free(error);
    return code == ATTNSMITH_OK;
}

}  // namespace attnsmith::python
