// Tens of thousands of malformed calls over all functions of the C ABI: valid calls, with one to three things
// broken. Each must give an error code with an error object, or a success where nothing that was
// broken has to be refused; outputs are written on success alone. Sanitizers watch the memory.
//
//   attnsmith-c-fuzz [CALLS] [SEED]
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "abi/attention_arguments.h"
#include "c_api/fake_driver.hpp"
#include "c_api/fuzz_breaker.hpp"
#include "c_api/fuzz_operands.hpp"
#include "c_api/handles.hpp"

using namespace attnsmith::test;
using nlohmann::json;

namespace {

const char* const kRequest =
    R"({"op": "attention", "dtype": "fp16", "head_dim": 64, "q_heads": 8, "kv_heads": 2, "mask": "causal",
        "window_left": 100, "kv": "paged", "page_size": 16, "lse": true, "batch": 2, "kv_len": 77, "sm": [80, 90]})";
const char* const kAppendRequest =
    R"({"op": "append", "dtype": "fp16", "head_dim": 64, "q_heads": 8, "kv_heads": 2, "kv": "paged", "page_size": 16,
        "kv_dtype": "e4m3", "kv_scale": "token_head", "slots": "mapping", "rope": "half", "rotary_dim": 32,
        "k_norm": true, "norm_eps": 1e-5, "check_slots": true, "q_len": 7, "sm": [80, 90]})";
const char* const kMlaRequest =
    R"({"op": "mla", "dtype": "fp16", "head_dim_ckv": 512, "head_dim_kpe": 64, "q_heads": 128, "mask": "causal",
        "scale": 0.1, "kv": "paged", "page_size": 64, "kv_dtype": "e4m3", "kv_scale": "block128", "sm": 90})";
const char* const kMergeRequest =
    R"({"op": "merge", "dtype": "fp16", "head_dim": 64, "q_heads": 8, "lse": true, "q_len": 77, "sm": 90})";
const char* const kModel =
    R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_scaling": {"type": "x", "factor": [1, 2]}})";
const char* const kModelOptions = R"({"dtype": "fp16", "kv": "dense", "batch": 3, "tensor_parallel": 2})";

struct Counts {
    int calls = 0, malformed = 0, failed = 0;
};

[[noreturn]] void give_up(const std::string& what) {
    std::fprintf(stderr, "FUZZ FAILURE: %s\n", what.c_str());
    std::exit(1);
}

std::int32_t on_progress(void* user, const char* kernel, std::int32_t, std::int32_t) {
    if (!json::parse(kernel).contains("state")) give_up("a progress without a state");
    return *static_cast<std::int32_t*>(user);
}

void on_log(void*, std::int32_t, const char*) {}

class Fuzzer : Breaker {
  public:
    Fuzzer(std::uint64_t seed, const std::string& folder) : Breaker(seed), folder_(folder) {
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
        expect_ok(attnsmith_allocate(runtime_.get(), 0, kBufferBytes, &buffer, nullptr));
        buffer_.reset(buffer);
        attnsmith_buffer* scratch = nullptr;
        expect_ok(attnsmith_allocate(runtime_.get(), 0, kScratchBytes, &scratch, nullptr));
        scratch_.reset(scratch);
        attnsmith_pending* pending = nullptr;
        const attnsmith_spec spec = valid_spec(Kind::dense);
        expect_ok(attnsmith_prepare_async(runtime_.get(), &spec, nullptr, 0, &pending, nullptr));
        pending_.reset(pending);
    }

    // Until at least `wanted` malformed calls were made.
    void run(int wanted) {
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
            {"bind", &Fuzzer::bind, 30},
            {"run", &Fuzzer::run_once, 20},
            {"bind_merge", &Fuzzer::bind_merge, 15},
            {"run_merge", &Fuzzer::run_merge, 10},
            {"bind_append", &Fuzzer::bind_append, 20},
            {"run_append", &Fuzzer::run_append, 15},
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

  private:
    static constexpr std::size_t kBufferBytes = 4096, kScratchBytes = std::size_t{1} << 20;

    static void expect_ok(attnsmith_code code) {
        if (code != ATTNSMITH_OK) give_up("a valid call failed with code " + std::to_string(code));
    }

    static RuntimeHandle open(const std::string& cache, const char* nvrtc) {
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

    static void warm(attnsmith_runtime* runtime, Kind kind) {
        const attnsmith_spec spec = valid_spec(kind);
        const attnsmith_spec* const specs[] = {&spec};
        const std::int32_t sm = 90;
        char* report = nullptr;
        expect_ok(attnsmith_prewarm(runtime, specs, 1, &sm, 1, nullptr, &report, nullptr));
        const TextHandle owned(report);
        if (json::parse(report)["summary"]["failed"] != 0) give_up("prewarming failed");
    }

    // The kernels that are prepared without sizes and with those that the fuzzer gives.
    static void warm_for_sizes(attnsmith_runtime* runtime, Kind kind) {
        const attnsmith_spec spec = valid_spec(kind);
        const attnsmith_sizes sizes{sizeof sizes, kBatch, kQueries, kKeys};
        for (const attnsmith_sizes* const given : {static_cast<const attnsmith_sizes*>(nullptr), &sizes}) {
            attnsmith_kernel* kernel = nullptr;
            expect_ok(attnsmith_prepare(runtime, &spec, given, 0, &kernel, nullptr));
            attnsmith_kernel_free(kernel);
        }
    }

    static CallHandle valid_call(Kind kind, const attnsmith_kernel* kernel) {
        attnsmith_call* call = nullptr;
        if (is_append(kind)) {
            const AppendOperands operands(kind);
            expect_ok(
                attnsmith_bind_append(kernel, &operands.tensors, &operands.batch, nullptr, &call, nullptr));
        } else if (is_merge(kind)) {
            const MergeOperands operands(kind, 2);
            expect_ok(attnsmith_bind_merge(kernel, &operands.tensors, &call, nullptr));
        } else {
            const Operands operands(kind);
            expect_ok(attnsmith_bind(kernel, &operands.tensors, &operands.batch, nullptr, &call, nullptr));
        }
        return CallHandle(call);
    }

    attnsmith_error** error_slot() { return one_in(8) ? nullptr : &error_; }

    // ---- Judgement

    // What every call ends with: `untouched` says whether the outputs are as they were. (A function, so that
    // it looks at them after the call, which an argument of a call's result need not do.)
    template <typename Untouched>
    void judge(attnsmith_code code, Untouched untouched) {
        Counts& counts = counts_[name_];
        ++counts.calls;
        if (!broken_.empty()) ++counts.malformed, ++malformed_;
        const auto wrong = [&](const std::string& what) {
            give_up(name_ + " (broken: " + broken_ + "), code " + std::to_string(code) + ": " + what + ": " +
                    attnsmith_error_message(error_));
        };
        if (code == ATTNSMITH_OK) {
            if (error_ != nullptr) wrong("an error object after a success");
            if (must_fail_) wrong("success, where it has to fail");
            return;
        }
        ++counts.failed;
        if (code < 0 || code > ATTNSMITH_KERNEL_MISSING) wrong("no code of the header");
        if (code == ATTNSMITH_FAILED) wrong("an error without a kind");
        if (broken_.empty()) wrong("a valid call failed");
        if (!untouched()) wrong("an output was written");
        if (error_ == nullptr) return;  // the caller wanted none
        if (attnsmith_error_code(error_) != code) wrong("another code in the object");
        const json details = json::parse(attnsmith_error_details(error_));
        if (details.at("message") != attnsmith_error_message(error_)) wrong("another message in the details");
        if (!details.at("code").is_string()) wrong("no code in the details");
        if (code == ATTNSMITH_INVALID_REQUEST &&
            (details.at("field") == "" || details.at("accepted") == "" || !details.contains("value"))) {
            wrong("no field");
        }
        if (!field_.empty() && code == ATTNSMITH_INVALID_REQUEST) judge_field(details.at("field"));
        attnsmith_error_free(error_);
        error_ = nullptr;
    }

    // Values of a spec are named as JSON does, what is no value of an enumeration within the struct.
    void judge_field(std::string field) {
        const std::string said = field;
        for (const std::string within : {"spec.", "specs[0]."})
            if (field.starts_with(within) && !field_.starts_with(within)) field.erase(0, within.size());
        if (!field.starts_with(field_))
            give_up(name_ + " (broken: " + broken_ + "): the error names " + said + " instead of " + field_ +
                    ": " + attnsmith_error_message(error_));
    }

    // A text that was handed out is JSON, and only on success.
    void judge_json(attnsmith_code code, char* const& text) {
        const TextHandle owned(text);
        if (code == ATTNSMITH_OK && !json::accept(text)) give_up(name_ + " gave no JSON: " + text);
        judge(code, [&] { return text == nullptr; });
    }

    // What was bound lies within the address space, and within itself.
    void check_bound(const std::vector<FuzzTensor>& tensors) {
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
                give_up(name_ + " bound " + tensor.name + ", which has no addresses (broken: " + broken_ +
                        ")");
            }
        }
    }

    // ---- The functions

    attnsmith_spec any_valid_spec() { return valid_spec(kKinds[below(std::size(kKinds))]); }

    void versions() {
        static const char* const kNames[] = {"", "op", "op:attention ", "\xff", "cache:", "op:splice"};
        if (attnsmith_has_feature(kNames[below(std::size(kNames))]) != 0 ||
            attnsmith_has_feature(nullptr) != 0) {
            give_up("a feature that is none");
        }
        if (attnsmith_abi_version() != ATTNSMITH_ABI_VERSION || !json::accept(attnsmith_features()))
            give_up("features");
        if (std::strlen(attnsmith_version()) == 0) give_up("no version");
        counts_[name_].calls += 4;
    }

    void frees() {
        attnsmith_error_free(nullptr);
        attnsmith_string_free(nullptr);
        attnsmith_runtime_free(nullptr);
        attnsmith_kernel_free(nullptr);
        attnsmith_kernel_set_free(nullptr);
        attnsmith_kept_free(nullptr);
        attnsmith_pending_free(nullptr);
        attnsmith_call_free(nullptr);
        attnsmith_buffer_free(nullptr);
        const bool defined =
            attnsmith_error_code(nullptr) == ATTNSMITH_OK && *attnsmith_error_message(nullptr) == 0 &&
            std::string(attnsmith_error_details(nullptr)) == "{}" && attnsmith_kernel_device(nullptr) == -1 &&
            attnsmith_pending_ready(nullptr) == 1 && attnsmith_kernel_set_size(nullptr) == 0 &&
            attnsmith_buffer_data(nullptr) == nullptr && attnsmith_buffer_bytes(nullptr) == 0;
        if (!defined) give_up("what is said of NULL");
        counts_[name_].calls += 17;
    }

    void runtime_create() {
        const std::string cache = folder_ + "/kernels";
        const char* directories[] = {cache.c_str(), "/nowhere/else"};
        attnsmith_runtime_options options{};
        options.size = sizeof options;
        options.cache_dirs = directories;
        options.cache_dir_count = 2;
        options.log = on_log;
        break_size(options.size, "options", 80);
        const auto number = any_of<std::int32_t>({-1, 6, 1 << 30, -(1 << 30)});
        switch (below(12)) {
            case 0:
                options.cache_dirs = nullptr, breaks("cache_dirs NULL");
                break;
            case 1:
                options.cache_dir_count = any_of<std::size_t>({4097, std::size_t(-1), std::size_t{1} << 61}),
                breaks("count");
                break;
            case 2:
                directories[below(2)] = one_in(2) ? nullptr : "", breaks("directory");
                break;
            case 3:
                options.log_level = number, breaks("log_level");
                break;
            case 4:
                options.no_cache = number, breaks("no_cache");
                break;
            case 5:
                options.compile_threads = -1 - static_cast<std::int32_t>(below(1000)),
                breaks("compile_threads");
                break;
            case 6:
                options.toolchain = any_of<std::int32_t>({-1, 2, 1 << 30}), breaks("toolchain");
                break;
            case 9:
                options.cache_trust = any_of<std::int32_t>({-1, 3, 1 << 30}), breaks("cache_trust");
                break;
            case 10:
                options.cache_max_bytes = any_of<std::int64_t>({-2, INT64_MIN}), breaks("cache_max_bytes");
                break;
            case 11:
                options.no_cache_source = 2, breaks("no_cache_source");
                break;
            case 7:
                options.driver_path = "\xff/none", options.nvrtc_path = "", breaks("paths", false);
                break;
            default:
                break;
        }
        attnsmith_runtime* runtime = nullptr;
        attnsmith_error** const slot = error_slot();
        const attnsmith_code code = attnsmith_runtime_create(&options, or_null(&runtime, "runtime"), slot);
        judge(code, [&] { return runtime == nullptr; });
        attnsmith_runtime_free(runtime);
    }

    void devices_json() {
        char* text = nullptr;
        attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
        judge_json(attnsmith_devices_json(runtime, or_null(&text, "json"), error_slot()), text);
    }

    void parse_request() {
        const std::string text = break_text(any_of({kRequest, kMergeRequest, kAppendRequest, kMlaRequest}));
        attnsmith_spec spec{}, before{};
        attnsmith_sizes sizes{};
        spec.size = sizeof spec, sizes.size = sizeof sizes;
        break_size(spec.size, "spec", kLeastSpec), break_size(sizes.size, "sizes");
        before = spec;
        attnsmith_error** const slot = error_slot();
        const attnsmith_code code = attnsmith_parse_request(
            or_null(text.c_str(), "json"), or_null(&spec, "spec"), or_null(&sizes, "sizes"), slot);
        judge(code, [&] { return std::memcmp(&spec, &before, sizeof spec) == 0; });
        if (code != ATTNSMITH_OK) return;
        char* again = nullptr;  // what was read is a request
        expect_ok(attnsmith_request_json(&spec, &sizes, &again, nullptr));
        attnsmith_string_free(again);
    }

    void request_json() {
        attnsmith_spec spec = any_valid_spec();
        attnsmith_sizes sizes;
        break_spec(spec);
        const attnsmith_sizes* const given = break_sizes(sizes);
        char* text = nullptr;
        const attnsmith_spec* const from = or_null(&spec, "spec");
        judge_json(attnsmith_request_json(from, given, or_null(&text, "json"), error_slot()), text);
    }

    void model_json() {
        const std::string config = break_text(kModel);
        const bool none = one_in(3);
        const std::string options = none ? "" : break_text(kModelOptions);
        char* text = nullptr;
        const char* const from = or_null(config.c_str(), "config_json");
        judge_json(attnsmith_model_json(from, none ? nullptr : options.c_str(), or_null(&text, "json"),
                                        error_slot()),
                   text);
    }

    void coverage_json() {
        const bool of_model = one_in(2);
        const std::string config = of_model ? break_text(kModel) : std::string();
        const std::string words = break_text(of_model ? kModelOptions : kRequest);
        char* text = nullptr;
        judge_json(attnsmith_coverage_json(of_model ? config.c_str() : nullptr, words.c_str(),
                                           or_null(&text, "json"), error_slot()),
                   text);
    }

    void recorded_json() {
        const std::string file = break_text(
            R"({"schema": "attnsmith.recorded/1", "request": {"op": "attention", "head_dim": 64, "q_heads": 8}})");
        char* text = nullptr;
        judge_json(attnsmith_recorded_json(or_null(file.c_str(), "text"), or_null("file", "name"),
                                           or_null(&text, "json"), error_slot()),
                   text);
    }

    void plan_json() {
        attnsmith_spec spec = any_valid_spec();
        attnsmith_sizes sizes;
        break_spec(spec);
        const attnsmith_sizes* const given = break_sizes(sizes);
        std::int32_t sm = any_of<std::int32_t>({0, 80, 90, 120});
        if (one_in(8)) sm = any_of<std::int32_t>({-1, 70, 91, 1 << 30, -(1 << 30)}), breaks("sm");
        char* text = nullptr;
        attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
        const attnsmith_spec* const from = or_null(&spec, "spec");
        judge_json(attnsmith_plan_json(runtime, from, given, sm, or_null(&text, "json"), error_slot()), text);
    }

    void prewarm() {
        attnsmith_spec spec = valid_spec(kSetKinds[below(std::size(kSetKinds))]);
        break_spec(spec, "specs[0]");
        const attnsmith_spec* specs[] = {&spec, &spec};
        std::int32_t sms[] = {90, 90};
        std::size_t spec_count = 1 + below(2), sm_count = 1 + below(2);
        if (one_in(8)) specs[0] = nullptr, breaks("specs[0]");
        if (one_in(8)) sms[0] = any_of<std::int32_t>({-1, 0, 70, 1 << 30}), breaks("sms[0]");
        if (one_in(8)) {
            (one_in(2) ? spec_count : sm_count) =
                any_of<std::size_t>({std::size_t(-1), std::size_t{1} << 60});
            breaks("count");
        }
        std::int32_t cancel = static_cast<std::int32_t>(below(2));
        attnsmith_prewarm_options options{sizeof options, on_progress, &cancel, 1, 0, 0, 0};
        break_size(options.size, "options", kLeastPrewarm);
        if (one_in(8)) options.jobs = -1, breaks("jobs");
        if (one_in(8)) options.reserved = -5, breaks("reserved");
        char* text = nullptr;
        attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
        const auto* const given_specs = or_null(&specs[0], "specs");
        const auto* const given_sms = or_null(&sms[0], "sms");
        const attnsmith_code code = attnsmith_prewarm(runtime, given_specs, spec_count, given_sms, sm_count,
                                                      &options, or_null(&text, "report"), error_slot());
        // What no kernel serves is listed in the report, and does not fail the call.
        if (code == ATTNSMITH_OK && !json::parse(text).at("unsupported").empty()) must_fail_ = false;
        judge_json(code, text);
    }

    void bundle() {
        const char* operation = any_of<const char*>({"export", "import"});
        const char* const options = any_of<const char*>({nullptr, "{}", "{\"file\": \"\"}", "{\"file\": 3}",
                                                         "{\"file\": null}", "{\"file\": \"x\", \"b\": 1}"});
        breaks("file");
        char* text = nullptr;
        judge_json(attnsmith_cache(or_null(runtime_.get(), "runtime"), operation, options,
                                   or_null(&text, "json"), error_slot()),
                   text);
    }

    void cache() {
        const char* operation = any_of<const char*>({"ls", "stat", "verify", "gc", "clear"});
        attnsmith_runtime* runtime = std::strcmp(operation, "clear") == 0 ? cleared_.get() : runtime_.get();
        if (one_in(3)) operation = any_of<const char*>({"", "LS", "gc ", "\xff", "ls "}), breaks("operation");
        const char* options = one_in(2) ? nullptr : "{}";
        if (one_in(3))
            options = any_of<const char*>({"", "x", "[]", "null", "{\"a\": 1}", "{\"\xff\": 1}"}),
            breaks("options");
        runtime = or_null(runtime, "runtime");
        operation = or_null(operation, "operation");
        char* text = nullptr;
        judge_json(attnsmith_cache(runtime, operation, options, or_null(&text, "json"), error_slot()), text);
    }

    void prepare() {
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

    // A spec that is wrong may show only when the kernel is asked for.
    void prepare_async() {
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

    void pending_kernel() {
        attnsmith_kernel* kernel = nullptr;
        const attnsmith_pending* const pending = or_null(pending_.get(), "pending");
        judge(attnsmith_pending_kernel(pending, or_null(&kernel, "kernel"), error_slot()),
              [&] { return kernel == nullptr; });
        attnsmith_kernel_free(kernel);
    }

    const attnsmith_kernel* any_kernel() { return or_null(kernels_[below(kernels_.size())].get(), "kernel"); }
    const attnsmith_call* any_call() { return or_null(calls_[below(calls_.size())].get(), "call"); }

    void kernel_spec() {
        attnsmith_spec spec{};
        spec.size = sizeof spec;
        break_size(spec.size, "spec", kLeastSpec);
        const attnsmith_spec before = spec;
        const attnsmith_kernel* const kernel = any_kernel();
        judge(attnsmith_kernel_spec(kernel, or_null(&spec, "spec"), error_slot()),
              [&] { return std::memcmp(&spec, &before, sizeof spec) == 0; });
    }

    void kernel_plan_json() {
        char* text = nullptr;
        const attnsmith_kernel* const kernel = any_kernel();
        judge_json(attnsmith_kernel_plan_json(kernel, or_null(&text, "json"), error_slot()), text);
    }

    void workspace_bytes() {
        const std::size_t place = below(kernels_.size());
        const bool merge = is_merge(kKinds[place]), attends = is_attention(kKinds[place]);
        std::int64_t arguments[] = {kBatch, kBatch * kQueries, kKeys};
        if (one_in(2)) {
            // Too many but for the queries of a merge and of an append.
            constexpr std::int64_t kMany = std::int64_t{1} << 31;
            const std::size_t changed = below(3);
            arguments[changed] = any_of<std::int64_t>({-1, kLeast, kMost, kMany, std::int64_t{1} << 62});
            static const char* const kNames[] = {"batch", "q_tokens", "max_kv_len"};
            breaks(kNames[changed], attends || changed != 1 || arguments[1] != kMany, kNames[changed]);
        }
        if (broken_.empty() && one_in(4)) {
            arguments[1 + below(2)] =
                any_of<std::int64_t>({std::int64_t{1} << 30, std::int64_t{1} << 29, 12345});
            breaks("large", false);
        }
        std::size_t bytes = 77;
        const attnsmith_kernel* const kernel = or_null(kernels_[place].get(), "kernel");
        std::size_t* const out = or_null(&bytes, "bytes");
        const attnsmith_code code =
            attnsmith_workspace_bytes(kernel, arguments[0], arguments[1], arguments[2], out, error_slot());
        judge(code, [&] { return bytes == 77; });
        if (code == ATTNSMITH_OK && merge && bytes != 0) give_up("a workspace of a merge");
        if (code == ATTNSMITH_OK && !merge && bytes < 256) give_up("a workspace of less than its status");
    }

    void bind() {
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

    void run_once() {
        const std::size_t kind = below(kAttentionKinds);
        Operands operands(kKinds[kind]);
        break_operands(operands);
        attnsmith_workspace workspace;
        const attnsmith_workspace* const given = or_null(
            break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes), "workspace");
        const attnsmith_kernel* const kernel = kernel_of_attention(kind);
        const attnsmith_tensors* const tensors = or_null(&operands.tensors, "tensors");
        const int launches = fake_driver().launches, allocations = fake_driver().allocations;
        const attnsmith_code code =
            attnsmith_run(kernel, tensors, &operands.batch, given, nullptr, error_slot());
        judge(code, [&] { return fake_driver().launches == launches; });
        if (fake_driver().allocations != allocations) give_up("run allocated device memory");
        if (code == ATTNSMITH_OK) check_bound(operands.list);
    }

    // The kernel of the other op is wrong, whatever the tensors are.
    const attnsmith_kernel* kernel_of_attention(std::size_t kind) {
        if (one_in(32))
            kind = kAttentionKinds + below(std::size(kKinds) - kAttentionKinds),
            breaks("kernel of another op");
        return or_null(kernels_[kind].get(), "kernel");
    }

    const attnsmith_kernel* kernel_of_merge(Kind kind) {
        if (broken_.empty() && one_in(16)) {
            kind = kind == Kind::merge ? Kind::merge_lse : Kind::merge;
            breaks("kernel with the other lse");
        } else if (one_in(16)) {
            kind = kKinds[below(kAttentionKinds)];
            breaks("kernel of attention");
        }
        return or_null(kernels_[static_cast<std::size_t>(kind)].get(), "kernel");
    }

    // ---- Sets of kernels

    void prepare_set() {
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

    // What is picked is the kernel that is prepared for these sizes, takes its tensors, and has no larger
    // workspace than the set says.
    void set_pick() {
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
        if (main_kernel(kernel) != main_kernel(prepared))
            give_up("a set picked another kernel than planning");
        valid_call(kind, kernel);
        const attnsmith_sizes none{sizeof none, 1, 1, 1}, of = given == nullptr ? none : *given;
        const std::int64_t tokens = of.batch * of.q_len;
        std::size_t of_set = 0, of_kernel = 0;
        expect_ok(attnsmith_kernel_set_workspace_bytes(set, of.batch, tokens, of.kv_len, &of_set, nullptr));
        expect_ok(attnsmith_workspace_bytes(kernel, of.batch, tokens, of.kv_len, &of_kernel, nullptr));
        if (of_kernel > of_set) give_up("a set's workspace is too small for a kernel of it");
    }

    // The key of the step that does the op's work, as the plan says: the first but for one that widens keys.
    static std::string main_kernel(const attnsmith_kernel* kernel) {
        char* text = nullptr;
        expect_ok(attnsmith_kernel_plan_json(kernel, &text, nullptr));
        const TextHandle owned(text);
        const json plan = json::parse(text);
        for (const json& step : plan.at("kernels"))
            if (step.at("role") != "widen") return step.at("cache").at("key");
        give_up(std::string("a plan without a kernel: ") + text);
    }

    void set_workspace_bytes() {
        const std::size_t place = below(sets_.size());
        const bool merge = is_merge(kSetKinds[place]);
        std::int64_t arguments[] = {kBatch, kTokens, kKeys};
        if (one_in(2)) {
            const std::size_t changed = below(3);
            arguments[changed] = any_of<std::int64_t>({-1, kLeast, kMost, std::int64_t{1} << 62});
            static const char* const kNames[] = {"batch", "q_tokens", "max_kv_len"};
            breaks(kNames[changed], true, kNames[changed]);
        }
        std::size_t bytes = 77;
        const attnsmith_kernel_set* const set = or_null(sets_[place].get(), "set");
        std::size_t* const out = or_null(&bytes, "bytes");
        const attnsmith_code code = attnsmith_kernel_set_workspace_bytes(set, arguments[0], arguments[1],
                                                                         arguments[2], out, error_slot());
        judge(code, [&] { return bytes == 77; });
        if (code == ATTNSMITH_OK && (merge ? bytes != 0 : bytes < ATTNSMITH_WORKSPACE_ZEROED_BYTES))
            give_up("a set's workspace of " + std::to_string(bytes) + " bytes");
    }

    // ---- Appends

    const attnsmith_kernel* kernel_of_append(Kind kind) {
        std::size_t place = static_cast<std::size_t>(kind);
        if (one_in(32)) {
            place = below(std::size(kKinds) - 2);
            breaks("kernel of another op");
        } else if (broken_.empty() && one_in(32)) {
            place = static_cast<std::size_t>(kind == Kind::append ? Kind::append_table : Kind::append);
            breaks("kernel of another append");
        }
        return or_null(kernels_[place].get(), "kernel");
    }

    template <typename Call>
    void append(Call call) {
        const Kind kind = any_of({Kind::append, Kind::append_table});
        AppendOperands operands(kind);
        break_operands(operands);
        const attnsmith_batch* batch = &operands.batch;
        if (!operands.by_table && broken_.empty() && one_in(2)) batch = nullptr;
        const attnsmith_kernel* const kernel = kernel_of_append(kind);
        const attnsmith_append_tensors* const tensors = or_null(&operands.tensors, "tensors");
        if (call(kernel, tensors, batch) == ATTNSMITH_OK) check_bound(operands.list);
    }

    void bind_append() {
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

    void run_append() {
        append([&](const attnsmith_kernel* kernel, const attnsmith_append_tensors* tensors,
                   const attnsmith_batch* batch) {
            attnsmith_workspace workspace;
            const attnsmith_workspace* const given =
                or_null(break_workspace(workspace, attnsmith_buffer_data(scratch_.get()), kScratchBytes),
                        "workspace");
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
    void merge(Call call) {
        const Kind kind = any_of({Kind::merge, Kind::merge_lse});
        std::size_t states = any_of<std::size_t>({1, 2, 3, MergeOperands::kMostStates});
        if (one_in(16)) states = MergeOperands::kMostStates + 1 + below(8);
        MergeOperands operands(kind, states);
        break_merge(operands);
        const attnsmith_kernel* const kernel = kernel_of_merge(kind);
        const int allocations = fake_driver().allocations;
        if (call(kernel, or_null(&operands.tensors, "tensors")) == ATTNSMITH_OK) check_bound(operands.list);
        if (fake_driver().allocations != allocations) give_up("a merge allocated device memory");
    }

    void bind_merge() {
        merge([&](const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors) {
            attnsmith_call* call = nullptr;
            const attnsmith_code code =
                attnsmith_bind_merge(kernel, tensors, or_null(&call, "call"), error_slot());
            judge(code, [&] { return call == nullptr; });
            attnsmith_call_free(call);
            return code;
        });
    }

    void run_merge() {
        merge([&](const attnsmith_kernel* kernel, const attnsmith_merge_tensors* tensors) {
            const int launches = fake_driver().launches;
            const attnsmith_code code = attnsmith_run_merge(kernel, tensors, nullptr, error_slot());
            judge(code, [&] { return fake_driver().launches == launches; });
            if (code == ATTNSMITH_OK && fake_driver().launches != launches + 1) give_up("no merge launched");
            return code;
        });
    }

    void launch() {
        judge(attnsmith_launch(any_call(), nullptr, error_slot()), [&] { return true; });
    }

    // The kernel is told the addresses that are given, and those that were bound of the others.
    void launch_at() {
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
        const attnsmith_code code = attnsmith_launch_at(call, given, nullptr, error_slot());
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

    // Whether the arguments of the last launch have this address.
    static bool was_told(std::uintptr_t address) {
        const unsigned char* const bytes = fake_driver().last_launch.parameter;
        for (std::size_t at = 0; at < sizeof(attnsmith::abi::AttentionArguments); at += sizeof address)
            if (std::memcmp(bytes + at, &address, sizeof address) == 0) return true;
        return false;
    }

    void call_keep_alive() {
        attnsmith_kept* kept = nullptr;
        const attnsmith_call* const call = any_call();
        judge(attnsmith_call_keep_alive(call, or_null(&kept, "kept"), error_slot()),
              [&] { return kept == nullptr; });
        attnsmith_kept_free(kept);
    }

    void call_status() {
        std::uint32_t bits = 77;
        const attnsmith_call* const call = any_call();
        judge(attnsmith_call_status(call, nullptr, or_null(&bits, "bits"), error_slot()),
              [&] { return bits == 77; });
    }

    void call_clear_status() {
        judge(attnsmith_call_clear_status(any_call(), nullptr, error_slot()), [&] { return true; });
    }

    void call_copy_status() {
        static std::uint32_t word;  // written once somebody waits for the stream
        const attnsmith_call* const call = any_call();
        judge(attnsmith_call_copy_status(call, or_null(&word, "word"), nullptr, error_slot()),
              [&] { return true; });
    }

    void call_describe() {
        char* text = nullptr;
        const attnsmith_call* const call = any_call();
        judge(attnsmith_call_describe(call, or_null(&text, "text"), error_slot()),
              [&] { return text == nullptr; });
        attnsmith_string_free(text);
    }

    void allocate() {
        const std::int32_t device = break_device();
        std::size_t bytes = below(10000);
        if (one_in(4))
            bytes = any_of<std::size_t>({std::size_t{1} << 60, std::size_t{1} << 55}), breaks("bytes");
        attnsmith_buffer* buffer = nullptr;
        attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
        judge(attnsmith_allocate(runtime, device, bytes, or_null(&buffer, "buffer"), error_slot()),
              [&] { return buffer == nullptr; });
        attnsmith_buffer_free(buffer);
    }

    void upload() {
        const Range range = break_range(kBufferBytes);
        attnsmith_buffer* const buffer = or_null(buffer_.get(), "buffer");
        const char* host = host_.data();
        if (range.bytes > 0) host = or_null(host, "host");
        judge(attnsmith_upload(buffer, host, range.bytes, range.offset, error_slot()), [&] { return true; });
    }

    void download() {
        const Range range = break_range(kBufferBytes);
        const attnsmith_buffer* const buffer = or_null(buffer_.get(), "buffer");
        char* host = host_.data();
        if (range.bytes > 0) host = or_null(host, "host");
        judge(attnsmith_download(buffer, host, range.bytes, range.offset, error_slot()),
              [&] { return true; });
    }

    void synchronize() {
        judge(attnsmith_synchronize(or_null(runtime_.get(), "runtime"), nullptr, error_slot()),
              [&] { return true; });
    }

    void report() const {
        Counts all;
        for (const auto& [name, counts] : counts_) {
            std::printf("%-22s %6d calls, %6d malformed, %6d refused\n", name.c_str(), counts.calls,
                        counts.malformed, counts.failed);
            all.calls += counts.calls, all.malformed += counts.malformed, all.failed += counts.failed;
        }
        std::printf("%-22s %6d calls, %6d malformed, %6d refused\n", "all", all.calls, all.malformed,
                    all.failed);
    }

    std::string folder_;
    RuntimeHandle runtime_, cleared_;
    std::vector<KernelHandle> kernels_;
    std::vector<CallHandle> calls_;
    std::vector<SetHandle> sets_;
    BufferHandle buffer_, scratch_;
    PendingHandle pending_;
    std::array<char, kBufferBytes> host_{};

    std::string name_;
    attnsmith_error* error_ = nullptr;
    int malformed_ = 0;
    std::map<std::string, Counts> counts_;
};

}  // namespace

int main(int count, char** arguments) {
    const int calls = count > 1 ? std::atoi(arguments[1]) : 30000;
    const std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
    const TemporaryFolder folder;
    std::printf("seed %" PRIu64 "\n", seed);
    Fuzzer(seed, folder.path()).run(calls);
    return 0;
}
