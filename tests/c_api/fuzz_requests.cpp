// What the fuzzer calls without a kernel: requests, models, plans, runtimes and the cache.
#include <cstring>

#include "c_api/fuzzer.hpp"

namespace attnsmith::test {
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

std::int32_t on_progress(void* user, const char* kernel, std::int32_t, std::int32_t) {
    if (!json::parse(kernel).contains("state")) give_up("a progress without a state");
    return *static_cast<std::int32_t*>(user);
}

std::int32_t on_stop(void* user) { return *static_cast<std::int32_t*>(user); }

void on_log(void*, std::int32_t, const char*) {}

}  // namespace

void Fuzzer::versions() {
    static const char* const kNames[] = {"", "op", "op:attention ", "\xff", "cache:", "op:splice"};
    if (attnsmith_has_feature(kNames[below(std::size(kNames))]) != 0 || attnsmith_has_feature(nullptr) != 0) {
        give_up("a feature that is none");
    }
    if (attnsmith_abi_version() != ATTNSMITH_ABI_VERSION || !json::accept(attnsmith_features()))
        give_up("features");
    if (std::strlen(attnsmith_version()) == 0) give_up("no version");
    if (attnsmith_workspace_zeroed_bytes() > ATTNSMITH_WORKSPACE_ZEROED_BYTES) give_up("zeroed bytes");
    counts_[name_].calls += 5;
}

void Fuzzer::frees() {
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
        std::string(attnsmith_error_details(nullptr)) == "{}" && *attnsmith_error_field(nullptr) == 0 &&
        attnsmith_error_driver_code(nullptr) == 0 && attnsmith_kernel_device(nullptr) == -1 &&
        attnsmith_kernel_set_device(nullptr) == -1 && attnsmith_kernel_set_kernel(nullptr, 0) == nullptr &&
        attnsmith_pending_ready(nullptr) == 1 && attnsmith_kernel_set_size(nullptr) == 0 &&
        attnsmith_buffer_data(nullptr) == nullptr && attnsmith_buffer_bytes(nullptr) == 0;
    if (!defined) give_up("what is said of NULL");
    counts_[name_].calls += 21;
}

void Fuzzer::runtime_create() {
    const std::string cache = folder_ + "/kernels";
    const char* directories[] = {cache.c_str(), "/nowhere/else"};
    attnsmith_runtime_options options{};
    options.size = sizeof options;
    options.cache_dirs = directories;
    options.cache_dir_count = 2;
    options.log_line = on_log;
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
            options.compile_threads = -1 - static_cast<std::int32_t>(below(1000)), breaks("compile_threads");
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

void Fuzzer::devices_json() {
    char* text = nullptr;
    attnsmith_runtime* const runtime = or_null(runtime_.get(), "runtime");
    judge_json(attnsmith_devices_json(runtime, or_null(&text, "json"), error_slot()), text);
}

void Fuzzer::parse_request() {
    const std::string text = break_text(any_of({kRequest, kMergeRequest, kAppendRequest, kMlaRequest}));
    attnsmith_spec spec{}, before{};
    attnsmith_sizes sizes{};
    spec.size = sizeof spec, sizes.size = sizeof sizes;
    break_size(spec.size, "spec", kLeastSpec), break_size(sizes.size, "sizes");
    before = spec;
    attnsmith_error** const slot = error_slot();
    const attnsmith_code code = attnsmith_parse_request(or_null(text.c_str(), "json"), or_null(&spec, "spec"),
                                                        or_null(&sizes, "sizes"), slot);
    judge(code, [&] { return std::memcmp(&spec, &before, sizeof spec) == 0; });
    if (code != ATTNSMITH_OK) return;
    char* again = nullptr;  // what was read is a request
    expect_ok(attnsmith_request_json(&spec, &sizes, &again, nullptr));
    attnsmith_string_free(again);
}

void Fuzzer::request_json() {
    attnsmith_spec spec = any_valid_spec();
    attnsmith_sizes sizes;
    break_spec(spec);
    const attnsmith_sizes* const given = break_sizes(sizes);
    char* text = nullptr;
    const attnsmith_spec* const from = or_null(&spec, "spec");
    judge_json(attnsmith_request_json(from, given, or_null(&text, "json"), error_slot()), text);
}

void Fuzzer::model_json() {
    const std::string config = break_text(kModel);
    const bool none = one_in(3);
    const std::string options = none ? "" : break_text(kModelOptions);
    char* text = nullptr;
    const char* const from = or_null(config.c_str(), "config_json");
    judge_json(
        attnsmith_model_json(from, none ? nullptr : options.c_str(), or_null(&text, "json"), error_slot()),
        text);
}

void Fuzzer::coverage_json() {
    char* text = nullptr;
    if (one_in(2)) {
        const std::string request = break_text(kRequest);
        const char* const given = or_null(request.c_str(), "request");
        judge_json(attnsmith_request_coverage_json(given, or_null(&text, "json"), error_slot()), text);
        return;
    }
    const std::string config = break_text(kModel);
    const bool none = one_in(4);
    const std::string options = none ? "" : break_text(kModelOptions);
    const char* const given = or_null(config.c_str(), "config_json");
    const attnsmith_code code = attnsmith_model_coverage_json(given, none ? nullptr : options.c_str(),
                                                              or_null(&text, "json"), error_slot());
    judge_json(code, text);
}

void Fuzzer::recorded_json() {
    const std::string file = break_text(
        R"({"schema": "attnsmith.recorded/1", "request": {"op": "attention", "head_dim": 64, "q_heads": 8}})");
    char* text = nullptr;
    judge_json(attnsmith_recorded_coverage_json(or_null(file.c_str(), "text"), or_null("file", "name"),
                                                or_null(&text, "json"), error_slot()),
               text);
}

void Fuzzer::plan_json() {
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

void Fuzzer::prewarm() {
    attnsmith_spec spec = valid_spec(kSetKinds[below(std::size(kSetKinds))]);
    break_spec(spec, "specs[0]");
    const attnsmith_spec* specs[] = {&spec, &spec};
    std::int32_t sms[] = {90, 90};
    std::size_t spec_count = 1 + below(2), sm_count = 1 + below(2);
    if (one_in(8)) specs[0] = nullptr, breaks("specs[0]");
    if (one_in(8)) sms[0] = any_of<std::int32_t>({-1, 0, 70, 1 << 30}), breaks("sms[0]");
    if (one_in(8)) {
        (one_in(2) ? spec_count : sm_count) = any_of<std::size_t>({std::size_t(-1), std::size_t{1} << 60});
        breaks("count");
    }
    std::int32_t cancel = static_cast<std::int32_t>(below(2));
    attnsmith_prewarm_options options{};
    options.size = sizeof options;
    options.progress = on_progress, options.progress_user = &cancel, options.jobs = 1;
    if (one_in(4)) options.should_stop = on_stop, options.stop_user = &cancel;
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

void Fuzzer::bundle() {
    const char* operation = any_of<const char*>({"export", "import"});
    const char* const options = any_of<const char*>({nullptr, "{}", "{\"file\": \"\"}", "{\"file\": 3}",
                                                     "{\"file\": null}", "{\"file\": \"x\", \"b\": 1}"});
    breaks("file");
    char* text = nullptr;
    judge_json(attnsmith_cache(or_null(runtime_.get(), "runtime"), operation, options, or_null(&text, "json"),
                               error_slot()),
               text);
}

void Fuzzer::cache() {
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

}  // namespace attnsmith::test
