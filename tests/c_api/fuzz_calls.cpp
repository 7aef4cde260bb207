// What the fuzzer binds, runs and launches, and its device memory.
#include <cstring>

#include "abi/attention_arguments.h"
#include "c_api/fuzzer.hpp"

namespace attnsmith::test {

void Fuzzer::bind() {
    const std::size_t kind = below(kAttentionKinds);
    Operands operands(kKinds[kind]);
    break_operands(operands);
    attnsmith_workspace workspace;
    const attnsmith_workspace* const given =
        one_in(2) ? nullptr
                  : break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes);
    const attnsmith_kernel* const kernel = kernel_of_attention(kind);
    const attnsmith_tensors* const tensors = or_null(&operands.tensors, "tensors");
    attnsmith_call* call = nullptr;
    const attnsmith_code code =
        attnsmith_bind(kernel, tensors, &operands.batch, given, or_null(&call, "call"), error_slot());
    judge(code, [&] { return call == nullptr; });
    if (code == ATTNSMITH_OK) check_bound(operands.list);
    attnsmith_call_free(call);
}

void Fuzzer::run_once() {
    const std::size_t kind = below(kAttentionKinds);
    Operands operands(kKinds[kind]);
    break_operands(operands);
    attnsmith_workspace workspace;
    const attnsmith_workspace* const given = or_null(
        break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes), "workspace");
    const attnsmith_kernel* const kernel = kernel_of_attention(kind);
    const attnsmith_tensors* const tensors = or_null(&operands.tensors, "tensors");
    const int launches = fake_driver().launches, allocations = fake_driver().allocations;
    const attnsmith_code code = attnsmith_run(kernel, tensors, &operands.batch, given, nullptr, error_slot());
    judge(code, [&] { return fake_driver().launches == launches; });
    if (fake_driver().allocations != allocations) give_up("run allocated device memory");
    if (code == ATTNSMITH_OK) check_bound(operands.list);
}

const attnsmith_kernel* Fuzzer::kernel_of_attention(std::size_t kind) {
    if (one_in(32))
        kind = kAttentionKinds + below(std::size(kKinds) - kAttentionKinds), breaks("kernel of another op");
    return or_null(kernels_[kind].get(), "kernel");
}

const attnsmith_kernel* Fuzzer::kernel_of_merge(Kind kind) {
    if (broken_.empty() && one_in(16)) {
        kind = kind == Kind::merge ? Kind::merge_lse : Kind::merge;
        breaks("kernel with the other lse");
    } else if (one_in(16)) {
        kind = kKinds[below(kAttentionKinds)];
        breaks("kernel of attention");
    }
    return or_null(kernels_[static_cast<std::size_t>(kind)].get(), "kernel");
}

const attnsmith_kernel* Fuzzer::kernel_of_append(Kind kind) {
    std::size_t place = static_cast<std::size_t>(kind);
    if (one_in(32)) {
        place = below(static_cast<std::size_t>(Kind::append));
        breaks("kernel of another op");
    } else if (broken_.empty() && one_in(32)) {
        place = static_cast<std::size_t>(kind == Kind::append ? Kind::append_table : Kind::append);
        breaks("kernel of another append");
    }
    return or_null(kernels_[place].get(), "kernel");
}

template <typename Call>
void Fuzzer::append(Call call) {
    const Kind kind = any_of({Kind::append, Kind::append_table});
    AppendOperands operands(kind);
    break_operands(operands);
    const attnsmith_batch* batch = &operands.batch;
    if (!operands.by_table && broken_.empty() && one_in(2)) batch = nullptr;
    const attnsmith_kernel* const kernel = kernel_of_append(kind);
    const attnsmith_append_tensors* const tensors = or_null(&operands.tensors, "tensors");
    if (call(kernel, tensors, batch) == ATTNSMITH_OK) check_bound(operands.list);
}

void Fuzzer::bind_append() {
    append([&](const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
               const attnsmith_batch* batch) {
        attnsmith_workspace workspace;
        const attnsmith_workspace* const given =
            one_in(2) ? nullptr
                      : break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes);
        attnsmith_call* call = nullptr;
        const attnsmith_code code =
            attnsmith_bind_append(kernel, tensors, batch, given, or_null(&call, "call"), error_slot());
        judge(code, [&] { return call == nullptr; });
        attnsmith_call_free(call);
        return code;
    });
}

void Fuzzer::run_append() {
    append([&](const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
               const attnsmith_batch* batch) {
        attnsmith_workspace workspace;
        const attnsmith_workspace* const given = or_null(
            break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes), "workspace");
        const int launches = fake_driver().launches, allocations = fake_driver().allocations;
        const attnsmith_code code =
            attnsmith_run_append(kernel, tensors, batch, given, nullptr, error_slot());
        judge(code, [&] { return fake_driver().launches == launches; });
        if (fake_driver().allocations != allocations) give_up("an append allocated device memory");
        if (code == ATTNSMITH_OK && fake_driver().launches != launches + 1) give_up("no append launched");
        return code;
    });
}

template <typename Call>
void Fuzzer::merge(Call call) {
    const Kind kind = any_of({Kind::merge, Kind::merge_lse});
    std::size_t states = any_of<std::size_t>({1, 2, 3, MergeOperands::kMostStates});
    if (one_in(16)) states = MergeOperands::kMostStates + 1 + below(8);
    MergeOperands operands(kind, states);
    break_merge(operands);
    const attnsmith_kernel* const kernel = kernel_of_merge(kind);
    const int allocations = fake_driver().allocations;
    attnsmith_batch batch{};
    batch.size = sizeof batch;
    if (one_in(12)) batch.max_kv_len = 1, breaks("batch bound", true, "batch.max_");
    const attnsmith_batch* const bound = one_in(2) || !broken_.empty() ? &batch : nullptr;
    attnsmith_workspace workspace;
    const attnsmith_workspace* given = nullptr;  // it needs none, but what it is given has to be one
    if (one_in(4))
        given = (workspace = {sizeof workspace, attnsmith_buffer_data(scratch_.get()), 0}, &workspace);
    const attnsmith_merge_tensors* const tensors = or_null(&operands.tensors, "tensors");
    if (call(kernel, tensors, bound, given) == ATTNSMITH_OK) check_bound(operands.list);
    if (fake_driver().allocations != allocations) give_up("a merge allocated device memory");
}

void Fuzzer::bind_merge() {
    merge([&](const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors,
              const attnsmith_batch* batch, const attnsmith_workspace* workspace) {
        attnsmith_call* call = nullptr;
        const attnsmith_code code =
            attnsmith_bind_merge(kernel, tensors, batch, workspace, or_null(&call, "call"), error_slot());
        judge(code, [&] { return call == nullptr; });
        attnsmith_call_free(call);
        return code;
    });
}

void Fuzzer::run_merge() {
    merge([&](const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors,
              const attnsmith_batch* batch, const attnsmith_workspace* workspace) {
        const int launches = fake_driver().launches;
        const attnsmith_code code =
            attnsmith_run_merge(kernel, tensors, batch, workspace, nullptr, error_slot());
        judge(code, [&] { return fake_driver().launches == launches; });
        if (code == ATTNSMITH_OK && fake_driver().launches != launches + 1) give_up("no merge launched");
        return code;
    });
}

const attnsmith_kernel* Fuzzer::kernel_of_top_k() {
    std::size_t place = static_cast<std::size_t>(Kind::top_k);
    if (one_in(32)) place = below(place), breaks("kernel of another op");
    return or_null(kernels_[place].get(), "kernel");
}

void Fuzzer::bind_top_k() {
    TopKOperands operands;
    break_operands(operands);
    attnsmith_workspace workspace;
    const attnsmith_workspace* const given =
        one_in(2) ? nullptr
                  : break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes);
    const attnsmith_kernel* const kernel = kernel_of_top_k();
    const attnsmith_top_k_tensors* const tensors = or_null(&operands.tensors, "tensors");
    const attnsmith_batch* const batch = broken_.empty() && one_in(2) ? nullptr : &operands.batch;
    attnsmith_call* call = nullptr;
    const attnsmith_code code =
        attnsmith_bind_top_k(kernel, tensors, batch, given, or_null(&call, "call"), error_slot());
    judge(code, [&] { return call == nullptr; });
    if (code == ATTNSMITH_OK) check_bound(operands.list);
    attnsmith_call_free(call);
}

void Fuzzer::run_top_k() {
    TopKOperands operands;
    break_operands(operands);
    attnsmith_workspace workspace;
    const attnsmith_workspace* const given = or_null(
        break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes), "workspace");
    const attnsmith_kernel* const kernel = kernel_of_top_k();
    const attnsmith_top_k_tensors* const tensors = or_null(&operands.tensors, "tensors");
    const int launches = fake_driver().launches, allocations = fake_driver().allocations;
    const attnsmith_code code =
        attnsmith_run_top_k(kernel, tensors, &operands.batch, given, nullptr, error_slot());
    judge(code, [&] { return fake_driver().launches == launches; });
    if (fake_driver().allocations != allocations) give_up("a selection allocated device memory");
    if (code != ATTNSMITH_OK) return;
    if (fake_driver().launches != launches + 1) give_up("no selection launched");
    check_bound(operands.list);
}

void Fuzzer::launch() {
    judge(attnsmith_launch(any_call(), nullptr, error_slot()), [&] { return true; });
}

void Fuzzer::launch_at() {
    const std::size_t place = below(calls_.size());
    const Kind kind = kKinds[place];
    Operands operands(is_attention(kind) ? kind : Kind::dense);
    attnsmith_tensor_addresses at{};
    at.size = sizeof at;
    std::map<std::string, std::uintptr_t> addresses;
    vary_addresses(at, operands, addresses);
    break_addresses(at, operands);
    if (!is_attention(kind)) breaks("call of another op", true, "addresses");
    const attnsmith_call* const call = or_null(calls_[place].get(), "call");
    const attnsmith_tensor_addresses* const given = or_null(&at, "addresses");
    fake_cuda_state& driver = fake_driver();
    driver.param_bytes = sizeof(attnsmith::abi::AttentionArguments);
    const int launches = driver.launches, allocations = driver.allocations;
    const attnsmith_code code = attnsmith_call_launch_at(call, given, nullptr, error_slot());
    driver.param_bytes = 0;
    judge(code, [&] { return driver.launches == launches; });
    if (driver.allocations != allocations) give_up("launch_at allocated device memory");
    if (code != ATTNSMITH_OK) return;
    if (driver.launches == launches) give_up("launch_at launched nothing");
    if (!broken_.empty()) return;
    for (const FuzzTensor& tensor : operands.list) {
        const auto moved = addresses.find(tensor.name);
        const auto bound = reinterpret_cast<std::uintptr_t>(tensor.view.data);
        if (!was_told(moved == addresses.end() ? bound : moved->second))
            give_up("the kernel was not told the address of " + tensor.name);
        if (moved != addresses.end() && was_told(bound)) give_up("a kernel was told two " + tensor.name);
    }
}

bool Fuzzer::was_told(std::uintptr_t address) {
    const unsigned char* const bytes = fake_driver().last_launch.parameter;
    for (std::size_t at = 0; at < sizeof(attnsmith::abi::AttentionArguments); at += sizeof address)
        if (std::memcmp(bytes + at, &address, sizeof address) == 0) return true;
    return false;
}

void Fuzzer::call_keep_alive() {
    attnsmith_kept* kept = nullptr;
    const attnsmith_call* const call = any_call();
    judge(attnsmith_call_keep_alive(call, or_null(&kept, "kept"), error_slot()),
          [&] { return kept == nullptr; });
    attnsmith_kept_free(kept);
}

void Fuzzer::call_status() {
    std::uint32_t bits = 77;
    const attnsmith_call* const call = any_call();
    judge(attnsmith_call_status(call, nullptr, or_null(&bits, "bits"), error_slot()),
          [&] { return bits == 77; });
}

void Fuzzer::call_clear_status() {
    judge(attnsmith_call_clear_status(any_call(), nullptr, error_slot()), [&] { return true; });
}

void Fuzzer::call_copy_status() {
    static std::uint32_t word;  // written when the stream is waited for
    const attnsmith_call* const call = any_call();
    judge(attnsmith_call_copy_status(call, or_null(&word, "word"), nullptr, error_slot()),
          [&] { return true; });
}

void Fuzzer::call_describe() {
    char* text = nullptr;
    const attnsmith_call* const call = any_call();
    judge(attnsmith_call_describe(call, or_null(&text, "text"), error_slot()),
          [&] { return text == nullptr; });
    attnsmith_string_free(text);
}

void Fuzzer::allocate() {
    const std::int32_t device = break_device();
    std::size_t bytes = below(10000);
    if (one_in(4)) bytes = any_of<std::size_t>({std::size_t{1} << 60, std::size_t{1} << 55}), breaks("bytes");
    attnsmith_buffer* buffer = nullptr;
    attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
    judge(attnsmith_buffer_allocate(runtime, device, bytes, or_null(&buffer, "buffer"), error_slot()),
          [&] { return buffer == nullptr; });
    attnsmith_buffer_free(buffer);
}

void Fuzzer::upload() {
    const Range range = break_range(kBufferBytes);
    attnsmith_buffer* const buffer = or_null(buffer_.get(), "buffer");
    const char* host = host_.data();
    if (range.bytes > 0) host = or_null(host, "host");
    judge(attnsmith_buffer_upload(buffer, host, range.bytes, range.offset, error_slot()),
          [&] { return true; });
}

void Fuzzer::download() {
    const Range range = break_range(kBufferBytes);
    const attnsmith_buffer* const buffer = or_null(buffer_.get(), "buffer");
    char* host = host_.data();
    if (range.bytes > 0) host = or_null(host, "host");
    judge(attnsmith_buffer_download(buffer, host, range.bytes, range.offset, error_slot()),
          [&] { return true; });
}

void Fuzzer::workspace_clear() {
    attnsmith_workspace workspace;
    const attnsmith_workspace* const given = or_null(
        break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes), "workspace");
    attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
    judge(attnsmith_workspace_clear(runtime, given, nullptr, break_device(), error_slot()),
          [&] { return true; });
}

void Fuzzer::call_synchronize() {
    judge(attnsmith_call_synchronize(any_call(), nullptr, error_slot()), [&] { return true; });
}

void Fuzzer::synchronize() {
    judge(attnsmith_synchronize(or_null(runtime_.get(), "runtime"), nullptr, error_slot()),
          [&] { return true; });
}

}  // namespace attnsmith::test
