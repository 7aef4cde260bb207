// What the fuzzer asks of kernels and of sets of them.
#include <cstring>

#include "c_api/fuzzer.hpp"

namespace attnsmith::test {

void Fuzzer::prepare() {
    attnsmith_spec spec = any_valid_spec();
    attnsmith_sizes sizes;
    break_spec(spec);
    const attnsmith_sizes* const given = break_sizes(sizes);
    attnsmith_kernel* kernel = nullptr;
    attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
    const attnsmith_spec* const from = or_null(&spec, "spec");
    const std::int32_t device = break_device();
    judge(attnsmith_prepare(runtime, from, given, device, or_null(&kernel, "kernel"), error_slot()),
          [&] { return kernel == nullptr; });
    attnsmith_kernel_free(kernel);
}

void Fuzzer::prepare_async() {
    attnsmith_spec spec = any_valid_spec();
    attnsmith_sizes sizes;
    break_spec(spec);
    const attnsmith_sizes* const given = break_sizes(sizes);
    attnsmith_pending* pending = nullptr;
    attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
    const attnsmith_spec* const from = or_null(&spec, "spec");
    const std::int32_t device = break_device();
    attnsmith_pending** const out = or_null(&pending, "pending");
    attnsmith_error** const slot = error_slot();
    attnsmith_code code = attnsmith_prepare_async(runtime, from, given, device, out, slot);
    const PendingHandle owned(pending);
    attnsmith_kernel* kernel = nullptr;
    if (code == ATTNSMITH_OK) code = attnsmith_pending_kernel(pending, &kernel, slot);
    judge(code, [&] { return kernel == nullptr; });
    attnsmith_kernel_free(kernel);
}

void Fuzzer::pending_kernel() {
    attnsmith_kernel* kernel = nullptr;
    const attnsmith_pending* const pending = or_null(pending_.get(), "pending");
    judge(attnsmith_pending_kernel(pending, or_null(&kernel, "kernel"), error_slot()),
          [&] { return kernel == nullptr; });
    attnsmith_kernel_free(kernel);
}

void Fuzzer::kernel_spec() {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    break_size(spec.size, "spec", kLeastSpec);
    const attnsmith_spec before = spec;
    const attnsmith_kernel* const kernel = any_kernel();
    judge(attnsmith_kernel_spec(kernel, or_null(&spec, "spec"), error_slot()),
          [&] { return std::memcmp(&spec, &before, sizeof spec) == 0; });
}

void Fuzzer::set_spec() {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    break_size(spec.size, "spec", kLeastSpec);
    const attnsmith_spec before = spec;
    const attnsmith_kernel_set* const set = or_null(sets_[below(sets_.size())].get(), "set");
    judge(attnsmith_kernel_set_spec(set, or_null(&spec, "spec"), error_slot()),
          [&] { return std::memcmp(&spec, &before, sizeof spec) == 0; });
    const std::size_t place = below(4), size = attnsmith_kernel_set_size(set);
    if ((attnsmith_kernel_set_kernel(set, place) != nullptr) != (place < size))
        give_up("a kernel that a set has not, or has");
    if (attnsmith_kernel_set_device(set) != (set == nullptr ? -1 : 0)) give_up("a set of no device");
}

std::pair<const char*, std::int64_t*> Fuzzer::any_bound(attnsmith_workspace_bounds& bounds) {
    const std::pair<const char*, std::int64_t*> all[] = {
        {"batch", &bounds.batch}, {"q_tokens", &bounds.q_tokens}, {"max_kv_len", &bounds.max_kv_len}};
    return all[below(std::size(all))];
}

void Fuzzer::kernel_plan_json() {
    char* text = nullptr;
    const attnsmith_kernel* const kernel = any_kernel();
    judge_json(attnsmith_kernel_plan_json(kernel, or_null(&text, "json"), error_slot()), text);
}

void Fuzzer::workspace_bytes() {
    const std::size_t place = below(kernels_.size());
    const bool merge = is_merge(kKinds[place]), attends = is_attention(kKinds[place]);
    attnsmith_workspace_bounds bounds{sizeof bounds, kBatch, kBatch * kQueries, kKeys};
    break_size(bounds.size, "bounds");
    if (one_in(2)) {
        // Too many but for the queries of a merge, an append and a selection.
        constexpr std::int64_t kMany = std::int64_t{1} << 31;
        const auto [name, bound] = any_bound(bounds);
        *bound = any_of<std::int64_t>({-1, kLeast, kMost, kMany, std::int64_t{1} << 62});
        breaks(name, attends || bound != &bounds.q_tokens || *bound != kMany, name);
    }
    if (broken_.empty() && one_in(4)) {
        (one_in(2) ? bounds.q_tokens : bounds.max_kv_len) =
            any_of<std::int64_t>({std::int64_t{1} << 30, std::int64_t{1} << 29, 12345});
        breaks("large", false);
    }
    const attnsmith_workspace_bounds* const given = or_null(&bounds, "bounds");
    std::size_t bytes = 77;
    const attnsmith_kernel* const kernel = or_null(kernels_[place].get(), "kernel");
    std::size_t* const out = or_null(&bytes, "bytes");
    const attnsmith_code code = attnsmith_kernel_workspace_bytes(kernel, given, out, error_slot());
    judge(code, [&] { return bytes == 77; });
    if (code == ATTNSMITH_OK && merge && bytes != 0) give_up("a workspace of a merge");
    if (code == ATTNSMITH_OK && !merge && bytes < 256) give_up("a workspace of less than its status");
}

void Fuzzer::prepare_set() {
    attnsmith_spec spec = valid_spec(kSetKinds[below(std::size(kSetKinds))]);
    break_spec(spec);
    attnsmith_kernel_set* set = nullptr;
    attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
    const attnsmith_spec* const from = or_null(&spec, "spec");
    const std::int32_t device = break_device();
    judge(attnsmith_prepare_set(runtime, from, device, or_null(&set, "set"), error_slot()),
          [&] { return set == nullptr; });
    if (set != nullptr && attnsmith_kernel_set_size(set) == 0) give_up("a set without kernels");
    attnsmith_kernel_set_free(set);
}

void Fuzzer::set_pick() {
    const std::size_t place = below(sets_.size());
    const Kind kind = kSetKinds[place];
    attnsmith_sizes sizes;
    const attnsmith_sizes* const given = break_sizes(sizes);
    if (given != nullptr && broken_.empty()) {
        sizes.batch = 1 + static_cast<std::int64_t>(below(300));
        sizes.q_len = 1 + static_cast<std::int64_t>(below(one_in(2) ? 8 : 5000));
        sizes.kv_len = 1 + static_cast<std::int64_t>(below(100000));
    }
    const attnsmith_kernel* const untouched = kernels_.front().get();
    const attnsmith_kernel* kernel = untouched;
    const attnsmith_kernel_set* const set = or_null(sets_[place].get(), "set");
    const attnsmith_code code =
        attnsmith_kernel_set_pick(set, given, or_null(&kernel, "kernel"), error_slot());
    judge(code, [&] { return kernel == untouched; });
    if (code != ATTNSMITH_OK) return;
    const attnsmith_spec spec = valid_spec(kind);
    attnsmith_kernel* prepared = nullptr;
    expect_ok(attnsmith_prepare(runtime_.get(), &spec, given, 0, &prepared, nullptr));
    const KernelHandle owned(prepared);
    if (main_kernel(kernel) != main_kernel(prepared)) give_up("a set picked another kernel than planning");
    valid_call(kind, kernel);
    const attnsmith_sizes none{sizeof none, 1, 1, 1}, of = given == nullptr ? none : *given;
    const std::int64_t tokens = of.batch * of.q_len;
    std::size_t of_set = 0, of_kernel = 0;
    const attnsmith_workspace_bounds bounds{sizeof bounds, of.batch, tokens, of.kv_len};
    expect_ok(attnsmith_kernel_set_workspace_bytes(set, &bounds, &of_set, nullptr));
    expect_ok(attnsmith_kernel_workspace_bytes(kernel, &bounds, &of_kernel, nullptr));
    if (of_kernel > of_set) give_up("a set's workspace is too small for a kernel of it");
}

std::string Fuzzer::main_kernel(const attnsmith_kernel* kernel) {
    char* text = nullptr;
    expect_ok(attnsmith_kernel_plan_json(kernel, &text, nullptr));
    const TextHandle owned(text);
    const json plan = json::parse(text);
    for (const json& step : plan.at("kernels"))
        if (step.at("role") != "widen") return step.at("cache").at("key");
    give_up(std::string("a plan without a kernel: ") + text);
}

void Fuzzer::set_workspace_bytes() {
    const std::size_t place = below(sets_.size());
    const bool merge = is_merge(kSetKinds[place]);
    attnsmith_workspace_bounds bounds{sizeof bounds, kBatch, kTokens, kKeys};
    break_size(bounds.size, "bounds");
    if (one_in(2)) {
        const auto [name, bound] = any_bound(bounds);
        *bound = any_of<std::int64_t>({-1, kLeast, kMost, std::int64_t{1} << 62});
        breaks(name, true, name);
    }
    const attnsmith_workspace_bounds* const given = or_null(&bounds, "bounds");
    std::size_t bytes = 77;
    const attnsmith_kernel_set* const set = or_null(sets_[place].get(), "set");
    std::size_t* const out = or_null(&bytes, "bytes");
    const attnsmith_code code = attnsmith_kernel_set_workspace_bytes(set, given, out, error_slot());
    judge(code, [&] { return bytes == 77; });
    if (code == ATTNSMITH_OK && (merge ? bytes != 0 : bytes < ATTNSMITH_WORKSPACE_ZEROED_BYTES))
        give_up("a set's workspace of " + std::to_string(bytes) + " bytes");
}

}  // namespace attnsmith::test
