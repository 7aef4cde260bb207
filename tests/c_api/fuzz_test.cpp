// Tens of thousands of malformed calls over all functions of the C ABI: valid calls, with one to three things
// broken. Each must give an error code with an error object, or a success where nothing that was
// broken has to be refused; outputs are written on success alone. Sanitizers watch the memory.
//
//   attnsmith-c-fuzz [CALLS] [SEED]
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <random>

#include "c_api/fuzzer.hpp"

namespace attnsmith::test {

Fuzzer::Fuzzer(std::uint64_t seed, const std::string& folder) : Breaker(seed), folder_(folder) {
    fake_driver();
    const RuntimeHandle compiling = open(folder + "/kernels", nullptr);
    for (const Kind kind : kSetKinds) warm(compiling.get(), kind);
    for (const Kind kind : kKinds) warm_for_sizes(compiling.get(), kind);
    // What is not in the cache cannot be compiled any more: a changed spec costs nothing.
    runtime_ = open(folder + "/kernels", "/nowhere");
    cleared_ = open(folder + "/cleared", "/nowhere");
    for (const Kind kind : kKinds) {
        const attnsmith_spec spec = valid_spec(kind);
        attnsmith_kernel* kernel = nullptr;
        expect_ok(attnsmith_prepare(runtime_.get(), &spec, nullptr, 0, &kernel, nullptr));
        kernels_.emplace_back(kernel);
        calls_.push_back(valid_call(kind, kernel));
    }
    for (const Kind kind : kSetKinds) {
        const attnsmith_spec spec = valid_spec(kind);
        attnsmith_kernel_set* set = nullptr;
        expect_ok(attnsmith_prepare_set(runtime_.get(), &spec, 0, &set, nullptr));
        sets_.emplace_back(set);
    }
    attnsmith_buffer* buffer = nullptr;
    expect_ok(attnsmith_buffer_allocate(runtime_.get(), 0, kBufferBytes, &buffer, nullptr));
    buffer_.reset(buffer);
    attnsmith_buffer* scratch = nullptr;
    expect_ok(attnsmith_buffer_allocate(runtime_.get(), 0, kScratchBytes, &scratch, nullptr));
    scratch_.reset(scratch);
    attnsmith_pending* pending = nullptr;
    const attnsmith_spec spec = valid_spec(Kind::dense);
    expect_ok(attnsmith_prepare_async(runtime_.get(), &spec, nullptr, 0, &pending, nullptr));
    pending_.reset(pending);
}

void Fuzzer::run(int wanted) {
    struct Entry {
        const char* name;
        void (Fuzzer::*call)();
        int weight;
    };
    const Entry entries[] = {
        {"version and features", &Fuzzer::versions, 1},
        {"errors and frees", &Fuzzer::frees, 2},
        {"runtime_create", &Fuzzer::runtime_create, 6},
        {"devices_json", &Fuzzer::devices_json, 2},
        {"parse_request", &Fuzzer::parse_request, 10},
        {"request_json", &Fuzzer::request_json, 10},
        {"model_json", &Fuzzer::model_json, 8},
        {"coverage_json", &Fuzzer::coverage_json, 6},
        {"recorded_json", &Fuzzer::recorded_json, 4},
        {"plan_json", &Fuzzer::plan_json, 4},
        {"prewarm", &Fuzzer::prewarm, 2},
        {"cache", &Fuzzer::cache, 3},
        {"bundle", &Fuzzer::bundle, 3},
        {"prepare", &Fuzzer::prepare, 6},
        {"prepare_async", &Fuzzer::prepare_async, 3},
        {"pending_kernel", &Fuzzer::pending_kernel, 2},
        {"kernel_spec", &Fuzzer::kernel_spec, 2},
        {"kernel_plan_json", &Fuzzer::kernel_plan_json, 1},
        {"workspace_bytes", &Fuzzer::workspace_bytes, 5},
        {"prepare_set", &Fuzzer::prepare_set, 5},
        {"kernel_set_pick", &Fuzzer::set_pick, 8},
        {"set_workspace_bytes", &Fuzzer::set_workspace_bytes, 5},
        {"set_spec", &Fuzzer::set_spec, 2},
        {"bind", &Fuzzer::bind, 30},
        {"run", &Fuzzer::run_once, 20},
        {"bind_merge", &Fuzzer::bind_merge, 15},
        {"run_merge", &Fuzzer::run_merge, 10},
        {"bind_append", &Fuzzer::bind_append, 20},
        {"run_append", &Fuzzer::run_append, 15},
        {"bind_top_k", &Fuzzer::bind_top_k, 12},
        {"run_top_k", &Fuzzer::run_top_k, 8},
        {"launch", &Fuzzer::launch, 2},
        {"launch_at", &Fuzzer::launch_at, 20},
        {"call_keep_alive", &Fuzzer::call_keep_alive, 2},
        {"call_status", &Fuzzer::call_status, 2},
        {"call_clear_status", &Fuzzer::call_clear_status, 1},
        {"call_copy_status", &Fuzzer::call_copy_status, 1},
        {"call_describe", &Fuzzer::call_describe, 1},
        {"allocate", &Fuzzer::allocate, 3},
        {"upload", &Fuzzer::upload, 4},
        {"download", &Fuzzer::download, 4},
        {"workspace_clear", &Fuzzer::workspace_clear, 3},
        {"call_synchronize", &Fuzzer::call_synchronize, 1},
        {"synchronize", &Fuzzer::synchronize, 1},
    };
    std::vector<int> weights;
    for (const Entry& entry : entries) weights.push_back(entry.weight);
    std::discrete_distribution<std::size_t> pick(weights.begin(), weights.end());
    while (malformed_ < wanted) {
        const Entry& entry = entries[pick(random())];
        name_ = entry.name;
        start_over();
        (this->*entry.call)();
    }
    report();
}

RuntimeHandle Fuzzer::open(const std::string& cache, const char* nvrtc) {
    const char* const directory = cache.c_str();
    attnsmith_runtime_options options{};
    options.size = sizeof options;
    options.cache_dirs = &directory;
    options.cache_dir_count = 1;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    options.nvrtc_path = nvrtc;
    options.log_level = ATTNSMITH_LOG_OFF;
    attnsmith_runtime* runtime = nullptr;
    expect_ok(attnsmith_runtime_create(&options, &runtime, nullptr));
    return RuntimeHandle(runtime);
}

void Fuzzer::warm(attnsmith_runtime* runtime, Kind kind) {
    const attnsmith_spec spec = valid_spec(kind);
    const attnsmith_spec* const specs[] = {&spec};
    const std::int32_t sm = 90;
    char* report = nullptr;
    expect_ok(attnsmith_prewarm(runtime, specs, 1, &sm, 1, nullptr, &report, nullptr));
    const TextHandle owned(report);
    if (json::parse(report)["summary"]["failed"] != 0) give_up("prewarming failed");
}

void Fuzzer::warm_for_sizes(attnsmith_runtime* runtime, Kind kind) {
    const attnsmith_spec spec = valid_spec(kind);
    const attnsmith_sizes sizes{sizeof sizes, kBatch, kQueries, kKeys};
    for (const attnsmith_sizes* const given : {static_cast<const attnsmith_sizes*>(nullptr), &sizes}) {
        attnsmith_kernel* kernel = nullptr;
        expect_ok(attnsmith_prepare(runtime, &spec, given, 0, &kernel, nullptr));
        attnsmith_kernel_free(kernel);
    }
}

CallHandle Fuzzer::valid_call(Kind kind, const attnsmith_kernel* kernel) {
    attnsmith_call* call = nullptr;
    if (is_append(kind)) {
        const AppendOperands operands(kind);
        expect_ok(attnsmith_bind_append(kernel, &operands.tensors, &operands.batch, nullptr, &call, nullptr));
    } else if (kind == Kind::top_k) {
        const TopKOperands operands;
        expect_ok(attnsmith_bind_top_k(kernel, &operands.tensors, &operands.batch, nullptr, &call, nullptr));
    } else if (is_merge(kind)) {
        const MergeOperands operands(kind, 2);
        expect_ok(attnsmith_bind_merge(kernel, &operands.tensors, nullptr, nullptr, &call, nullptr));
    } else {
        const Operands operands(kind);
        expect_ok(attnsmith_bind(kernel, &operands.tensors, &operands.batch, nullptr, &call, nullptr));
    }
    return CallHandle(call);
}

void Fuzzer::judge_field(std::string field) {
    const std::string said = field;
    for (const std::string within : {"spec.", "specs[0]."})
        if (field.starts_with(within) && !field_.starts_with(within)) field.erase(0, within.size());
    if (!field.starts_with(field_))
        give_up(name_ + " (broken: " + broken_ + "): the error names " + said + " instead of " + field_ +
                ": " + attnsmith_error_message(error_));
}

void Fuzzer::judge_json(attnsmith_code code, char* const& text) {
    const TextHandle owned(text);
    if (code == ATTNSMITH_OK && !json::accept(text)) give_up(name_ + " gave no JSON: " + text);
    judge(code, [&] { return text == nullptr; });
}

void Fuzzer::check_bound(const std::vector<FuzzTensor>& tensors) {
    for (const FuzzTensor& tensor : tensors) {
        const attnsmith_dl_tensor& view = tensor.view;
        __int128 first =
            static_cast<__int128>(reinterpret_cast<std::uintptr_t>(view.data)) + view.byte_offset;
        __int128 last = first;
        for (int axis = 0; axis < view.ndim && view.strides != nullptr; ++axis) {
            const __int128 reach =
                static_cast<__int128>(view.strides[axis]) * (view.shape[axis] - 1) * view.dtype.bits / 8;
            (reach < 0 ? first : last) += reach;
        }
        if (first < 0 || last > std::numeric_limits<std::uintptr_t>::max()) {
            give_up(name_ + " bound " + tensor.name + ", which has no addresses (broken: " + broken_ + ")");
        }
    }
}

void Fuzzer::report() const {
    Counts all;
    for (const auto& [name, counts] : counts_) {
        std::printf("%-22s %6d calls, %6d malformed, %6d refused\n", name.c_str(), counts.calls,
                    counts.malformed, counts.failed);
        all.calls += counts.calls, all.malformed += counts.malformed, all.failed += counts.failed;
    }
    std::printf("%-22s %6d calls, %6d malformed, %6d refused\n", "all", all.calls, all.malformed, all.failed);
}

}  // namespace attnsmith::test

int main(int count, char** arguments) {
    const int calls = count > 1 ? std::atoi(arguments[1]) : 30000;
    const std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
    const attnsmith::test::TemporaryFolder folder;
    std::printf("seed %" PRIu64 "\n", seed);
    attnsmith::test::Fuzzer(seed, folder.path()).run(calls);
    return 0;
}
