// What the functions of the C ABI answer: the texts of each kind of error, an error that is cleared by
// success, and what a progress function says.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>

#include "c_api/device_session.hpp"
#include "support/variable.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

struct Failed {
    attnsmith_code code;
    std::string message;
    json details;
};

// The answer of a call that is given where its error goes.
template <typename Call>
Failed failed(Call call) {
    attnsmith_error* error = nullptr;
    const attnsmith_code code = call(&error);
    const ErrorHandle owned(error);
    REQUIRE(code != ATTNSMITH_OK);
    REQUIRE(error != nullptr);
    CHECK(attnsmith_error_code(error) == code);
    return {code, attnsmith_error_message(error), json::parse(attnsmith_error_details(error))};
}

attnsmith_runtime* make(const attnsmith_runtime_options& options) {
    attnsmith_runtime* runtime = nullptr;
    must(attnsmith_runtime_create, &options, &runtime);
    return runtime;
}

attnsmith_runtime_options without_cache() {
    fake_driver();
    attnsmith_runtime_options options{};
    options.size = sizeof options;
    options.no_cache = 1;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    return options;
}

attnsmith_spec merge_spec() {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    spec.op = ATTNSMITH_OP_MERGE, spec.head_dim_vo = 64, spec.q_heads = 2;
    return spec;
}

Failed prepare_failed(const attnsmith_runtime_options& options, const attnsmith_spec& spec) {
    const RuntimeHandle runtime(make(options));
    return failed([&](attnsmith_error** error) {
        attnsmith_kernel* kernel = nullptr;
        const attnsmith_code code = attnsmith_prepare(runtime.get(), &spec, nullptr, 0, &kernel, error);
        CHECK(kernel == nullptr);
        return code;
    });
}

// No object at all: what stands where an error goes before a call that succeeds.
attnsmith_error* const kStale = reinterpret_cast<attnsmith_error*>(std::uintptr_t{16});

// Answers that a prewarm's progress gets, by turns.
struct Answers {
    std::int32_t answer = 0;
    int calls = 0;
};

json prewarmed(Answers& answers) {
    const RuntimeHandle runtime([] {
        static const TemporaryFolder folder;
        static int number = 0;
        const std::string directory = folder.path() + "/" + std::to_string(++number);
        const char* const directories = directory.c_str();
        attnsmith_runtime_options options = without_cache();
        options.no_cache = 0, options.cache_dirs = &directories, options.cache_dir_count = 1;
        return make(options);
    }());
    std::vector<attnsmith_spec> specs(4, merge_spec());
    std::vector<const attnsmith_spec*> list;
    for (attnsmith_spec& spec : specs) {
        spec.head_dim_vo = 64 + 8 * static_cast<std::int64_t>(list.size());
        list.push_back(&spec);
    }
    attnsmith_prewarm_options options{};
    options.size = sizeof options;
    options.jobs = 1;
    options.progress_user = &answers;
    options.progress = [](void* user, const char*, std::int32_t, std::int32_t) {
        auto& given = *static_cast<Answers*>(user);
        ++given.calls;
        return given.answer;
    };
    const std::int32_t sm = 90;
    char* text = nullptr;
    must(attnsmith_prewarm, runtime.get(), list.data(), list.size(), &sm, std::size_t{1}, &options, &text);
    const TextHandle owned(text);
    return json::parse(text)["summary"];
}

}  // namespace

TEST_CASE("a bad argument's error says the field, its value and what is accepted") {
    attnsmith_spec spec = dense_spec();
    spec.kv_heads = 3;
    const Failed error = prepare_failed(without_cache(), spec);
    CHECK(error.code == ATTNSMITH_CODE_INVALID_REQUEST);
    CHECK(error.message == "kv_heads: 3 is not accepted; expected a divisor of q_heads, which is 4");
    CHECK(error.details == json{{"code", "invalid_request"},
                                {"message", error.message},
                                {"field", "kv_heads"},
                                {"value", "3"},
                                {"accepted", "a divisor of q_heads, which is 4"}});
}

TEST_CASE("what is not supported is told with each candidate's reason") {
    attnsmith_spec spec = dense_spec();
    spec.consistency = ATTNSMITH_CONSISTENCY_BITWISE;
    spec.precision = ATTNSMITH_PRECISION_HIGH;
    const Failed error = prepare_failed(without_cache(), spec);
    CHECK(error.code == ATTNSMITH_CODE_UNSUPPORTED);
    CHECK(error.details["code"] == "unsupported");
    CHECK(error.message.starts_with(
        "precision and consistency are not supported together on sm_90; leave one "));
    CHECK(error.details["message"] == error.message);
    REQUIRE(error.details["refusals"].size() == 3);
    for (const json& refusal : error.details["refusals"]) {
        const std::string candidate = refusal["candidate"];
        CHECK((candidate == "wgmma" || candidate == "mma" || candidate == "cuda_core"));
        const std::string reason = refusal["reason"];
        CHECK((reason.find("precision") != std::string::npos || reason.find("bitwise") != std::string::npos));
        CHECK(error.message.find(refusal["reason"].get<std::string>()) != std::string::npos);
    }
}

TEST_CASE("what the compiler refuses is told with its log, the options and the source") {
    ::setenv("FAKE_NVRTC_FAIL", "1", 1);
    const Failed error = prepare_failed(without_cache(), merge_spec());
    ::unsetenv("FAKE_NVRTC_FAIL");
    CHECK(error.code == ATTNSMITH_CODE_COMPILE_ERROR);
    CHECK(error.details["code"] == "compile_error");
    CHECK(error.details["message"] == error.message);
    CHECK(!error.details["log"].get<std::string>().empty());
    CHECK(error.details["numbered_source"].get<std::string>().find("attnsmith") != std::string::npos);
    const std::string options = error.details["options"].dump();
    CHECK(options.find("sm_90") != std::string::npos);
}

TEST_CASE("a library that is not there is told with where it was looked for") {
    attnsmith_runtime_options options = without_cache();
    options.nvrtc_path = "/nowhere/libnvrtc.so";
    Failed error = prepare_failed(options, merge_spec());
    CHECK(error.code == ATTNSMITH_CODE_LIBRARY_MISSING);
    CHECK(error.details["code"] == "library_missing");
    CHECK(error.details["message"] == error.message);
    CHECK(error.details["library"].get<std::string>().find("NVRTC") != std::string::npos);
    REQUIRE(error.details["tried"].size() > 0);
    CHECK(error.details["tried"][0].get<std::string>().find("/nowhere/libnvrtc.so") != std::string::npos);
    options = without_cache();
    options.driver_path = "/nowhere/libcuda.so";
    error = prepare_failed(options, merge_spec());
    CHECK(error.details["library"] == "the CUDA driver (libcuda.so.1)");
}

TEST_CASE("an operation on a cache that there is not is a cache error") {
    const RuntimeHandle runtime(make(without_cache()));
    const Failed error = failed([&](attnsmith_error** out) {
        char* text = nullptr;
        return attnsmith_cache(runtime.get(), "ls", nullptr, &text, out);
    });
    CHECK(error.code == ATTNSMITH_CODE_CACHE_ERROR);
    CHECK(error.details == json{{"code", "cache_error"}, {"message", error.message}, {"path", ""}});
    CHECK(error.message.find("switched off") != std::string::npos);
}

TEST_CASE("success clears the error that stood there, and nobody need ask for one") {
    const RuntimeHandle runtime(make(without_cache()));
    attnsmith_spec spec = merge_spec();
    attnsmith_sizes sizes{};
    sizes.size = sizeof sizes;
    char* text = nullptr;
    attnsmith_error* error = kStale;
    const auto succeeded = [&](attnsmith_code code) {
        CHECK(code == ATTNSMITH_OK);
        CHECK(error == nullptr);
        error = kStale;
        attnsmith_string_free(text);
        text = nullptr;
    };
    succeeded(attnsmith_request_json(&spec, nullptr, &text, &error));
    succeeded(attnsmith_parse_request(R"({"head_dim": 64, "q_heads": 8})", &spec, &sizes, &error));
    succeeded(attnsmith_plan_json(runtime.get(), &spec, &sizes, 90, &text, &error));
    succeeded(attnsmith_devices_json(runtime.get(), &text, &error));
    attnsmith_kernel* kernel = nullptr;
    spec = merge_spec();
    succeeded(attnsmith_prepare(runtime.get(), &spec, nullptr, 0, &kernel, &error));
    const KernelHandle owned_kernel(kernel);
    succeeded(attnsmith_kernel_plan_json(kernel, &text, &error));
    attnsmith_buffer* buffer = nullptr;
    succeeded(attnsmith_buffer_allocate(runtime.get(), 0, 64, &buffer, &error));
    const BufferHandle owned_buffer(buffer);
    succeeded(attnsmith_buffer_upload(buffer, "four", 4, 0, &error));
    succeeded(attnsmith_synchronize(runtime.get(), nullptr, &error));
    CHECK(attnsmith_synchronize(runtime.get(), nullptr, nullptr) == ATTNSMITH_OK);
    CHECK(attnsmith_buffer_upload(nullptr, "four", 4, 0, nullptr) == ATTNSMITH_CODE_INVALID_REQUEST);
}

TEST_CASE("any answer of a progress function but 0 cancels what is left") {
    Answers go_on{0}, stop{1}, negative{-1}, least{std::numeric_limits<std::int32_t>::min()};
    const json all = prewarmed(go_on);
    CHECK((all["compiled"] == 4 && all["cancelled"] == 0));
    for (Answers* const answers : {&stop, &negative, &least}) {
        const json summary = prewarmed(*answers);
        CAPTURE(answers->answer, summary.dump());
        CHECK(summary["compiled"] == 1);
        CHECK(summary["cancelled"] == 3);
        CHECK(answers->calls == 4);  // each kernel is told of, also one that is not made
    }
}

namespace {

// What was logged at each level.
struct Lines {
    std::vector<std::pair<std::int32_t, std::string>> all;

    static void take(void* lines, std::int32_t level, const char* line) {
        static_cast<Lines*>(lines)->all.emplace_back(level, line);
    }
    bool has(std::int32_t level) const {
        return std::any_of(all.begin(), all.end(), [&](const auto& line) { return line.first == level; });
    }
};

Lines logged_at(std::int32_t level) {
    Lines lines;
    attnsmith_runtime_options options = without_cache();
    options.log_line = Lines::take, options.log_user = &lines, options.log_level = level;
    const RuntimeHandle runtime(make(options));
    const attnsmith_spec spec = merge_spec();
    attnsmith_kernel* kernel = nullptr;
    must(attnsmith_prepare, runtime.get(), &spec, nullptr, 0, &kernel);
    attnsmith_kernel_free(kernel);
    options.driver_path = "/nowhere/libcuda.so";
    const RuntimeHandle without_driver(make(options));
    char* text = nullptr;
    must(attnsmith_devices_json, without_driver.get(), &text);  // says why there are none, at debug
    attnsmith_string_free(text);
    return lines;
}

}  // namespace

TEST_CASE("with no_environment no variable is read") {
    const Variable loud("ATTNSMITH_LOG", "loud");
    attnsmith_runtime_options options = without_cache();
    const auto create = [&](attnsmith_error** error) {
        attnsmith_runtime* runtime = nullptr;
        return attnsmith_runtime_create(&options, &runtime, error);
    };
    CHECK(failed(create).details["field"] == "ATTNSMITH_LOG");
    options.no_environment = 2;
    CHECK(failed(create).details["field"] == "options.no_environment");
    options.no_environment = 1;
    CHECK_NOTHROW(RuntimeHandle(make(options)));
}

TEST_CASE("log lines come with the level that was asked for, and those above it") {
    const Lines debug = logged_at(ATTNSMITH_LOG_DEBUG), info = logged_at(ATTNSMITH_LOG_INFO);
    CHECK((debug.has(ATTNSMITH_LOG_DEBUG) && debug.has(ATTNSMITH_LOG_INFO)));
    CHECK((info.has(ATTNSMITH_LOG_INFO) && !info.has(ATTNSMITH_LOG_DEBUG)));
    CHECK(logged_at(ATTNSMITH_LOG_WARN).all.empty());
    CHECK(logged_at(ATTNSMITH_LOG_OFF).all.empty());
}

TEST_CASE("a limit of the cache, and what its entries hold, is what the options say") {
    const auto stat_and_bytes = [](std::int64_t max_bytes, std::int32_t no_source) {
        const TemporaryFolder folder;
        const char* const directory = folder.path().c_str();
        attnsmith_runtime_options options = without_cache();
        options.no_cache = 0, options.cache_dirs = &directory, options.cache_dir_count = 1;
        options.cache_max_bytes = max_bytes, options.no_cache_source = no_source;
        const RuntimeHandle runtime(make(options));
        const attnsmith_spec spec = merge_spec();
        attnsmith_kernel* kernel = nullptr;
        must(attnsmith_prepare, runtime.get(), &spec, nullptr, 0, &kernel);
        attnsmith_kernel_free(kernel);
        char* text = nullptr;
        must(attnsmith_cache, runtime.get(), "stat", nullptr, &text);
        const TextHandle owned(text);
        const json stat = json::parse(text);
        REQUIRE(stat["entries"] == 1);
        return std::pair{json(stat["max_bytes"]), stat["bytes"].get<std::uint64_t>()};
    };
    const auto [usual_limit, with_source] = stat_and_bytes(0, 0);
    CHECK(usual_limit == std::uint64_t{2} << 30);
    CHECK(stat_and_bytes(-1, 0).first.is_null());
    const auto [limit, without_source] = stat_and_bytes(123456789, 1);
    CHECK(limit == 123456789);
    CHECK(without_source + 500 < with_source);
}

TEST_CASE("what is being compiled in the background is not ready") {
    const TemporaryFolder folder;
    const std::string gate = folder.path() + "/gate";
    std::fclose(std::fopen(gate.c_str(), "w"));
    ::setenv("FAKE_NVRTC_BLOCK", gate.c_str(), 1);
    const RuntimeHandle runtime(make(without_cache()));
    const attnsmith_spec spec = merge_spec();
    attnsmith_pending* made = nullptr;
    must(attnsmith_prepare_async, runtime.get(), &spec, nullptr, 0, &made);
    const PendingHandle pending(made);
    CHECK(attnsmith_pending_ready(made) == 0);
    std::remove(gate.c_str());
    attnsmith_kernel* kernel = nullptr;
    must(attnsmith_pending_kernel, made, &kernel);
    attnsmith_kernel_free(kernel);
    CHECK(attnsmith_pending_ready(made) == 1);
    ::unsetenv("FAKE_NVRTC_BLOCK");
}

TEST_CASE("every field of a request goes out as it came in") {
    const char* const request =
        R"({"head_dim": 64, "q_heads": 8, "window_left": 3, "window_right": 5, "softcap": 20, "scale": 0.5,)"
        R"( "alibi": true, "kv": "ragged", "index_dtype": "int64", "alignment": 4})";
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    attnsmith_sizes sizes{};
    sizes.size = sizeof sizes;
    must(attnsmith_parse_request, request, &spec, &sizes);
    CHECK((spec.has_window_left == 1 && spec.window_left == 3));
    CHECK((spec.has_window_right == 1 && spec.window_right == 5));
    CHECK((spec.softcap == 20 && spec.scale == 0.5 && spec.alibi == 1 && spec.sink == 0));
    CHECK(
        (spec.kv == ATTNSMITH_KV_RAGGED && spec.index_dtype == ATTNSMITH_DTYPE_INT64 && spec.alignment == 4));
}

namespace {

// Prewarms merge_spec() with these callbacks, while another runtime compiles its kernel and does not end.
json prewarmed_beside_a_compile(attnsmith_prewarm_options options) {
    const TemporaryFolder folder;
    const std::string gate = folder.path() + "/gate", cache = folder.path() + "/cache";
    const std::string begun = folder.path() + "/begun";
    std::fclose(std::fopen(gate.c_str(), "w"));
    ::setenv("FAKE_NVRTC_BLOCK", gate.c_str(), 1);
    ::setenv("FAKE_NVRTC_LOG", begun.c_str(), 1);
    const char* const directory = cache.c_str();
    attnsmith_runtime_options given = without_cache();
    given.no_cache = 0, given.cache_dirs = &directory, given.cache_dir_count = 1;
    const RuntimeHandle compiling(make(given)), waiting(make(given));
    const attnsmith_spec spec = merge_spec();
    attnsmith_pending* pending = nullptr;
    must(attnsmith_prepare_async, compiling.get(), &spec, nullptr, 0, &pending);
    const PendingHandle owned_pending(pending);
    while (!std::filesystem::exists(begun)) std::this_thread::sleep_for(std::chrono::milliseconds(1));

    options.size = sizeof options;
    const attnsmith_spec* const specs[] = {&spec};
    const std::int32_t sm = 90;
    char* text = nullptr;
    must(attnsmith_prewarm, waiting.get(), specs, std::size_t{1}, &sm, std::size_t{1}, &options, &text);
    const TextHandle owned(text);
    CHECK(attnsmith_pending_ready(pending) == 0);
    std::filesystem::remove(gate);
    ::unsetenv("FAKE_NVRTC_BLOCK");
    ::unsetenv("FAKE_NVRTC_LOG");
    return json::parse(text)["summary"];
}

}  // namespace

TEST_CASE("a prewarm that waits for another one's compile says so once, and stops if it is told to") {
    json waited = json::array();
    attnsmith_prewarm_options options{};
    options.waiting_user = &waited;
    options.waiting = [](void* user, const char* kernel) {
        static_cast<json*>(user)->push_back(json::parse(kernel));
        return std::int32_t{1};
    };
    const json summary = prewarmed_beside_a_compile(options);
    CHECK((summary["cancelled"] == 1 && summary["total"] == 1));
    REQUIRE(waited.size() == 1);
    CHECK((waited[0]["sm"] == 90 && !waited[0]["key"].empty() && waited[0]["name"] != ""));
}

TEST_CASE("a prewarm is stopped while no kernel of it is done") {
    int asked = 0;
    attnsmith_prewarm_options options{};
    options.stop_user = &asked;
    options.should_stop = [](void* user) {
        return static_cast<std::int32_t>(++*static_cast<int*>(user) == 3);
    };
    const json summary = prewarmed_beside_a_compile(options);
    CHECK((summary["cancelled"] == 1 && summary["total"] == 1));
    CHECK(asked == 3);
}
