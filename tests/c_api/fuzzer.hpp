// The fuzzer of the C ABI: its state, and how each call is judged. Its calls are in fuzz_requests.cpp,
// fuzz_kernels.cpp and fuzz_calls.cpp.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "c_api/fake_driver.hpp"
#include "c_api/fuzz_breaker.hpp"
#include "c_api/fuzz_operands.hpp"
#include "c_api/handles.hpp"

namespace attnsmith::test {

using nlohmann::json;

struct Counts {
    int calls = 0, malformed = 0, failed = 0;
};

[[noreturn]] inline void give_up(const std::string& what) {
    std::fprintf(stderr, "FUZZ FAILURE: %s\n", what.c_str());
    std::exit(1);
}

class Fuzzer : Breaker {
  public:
    Fuzzer(std::uint64_t seed, const std::string& folder);
    // Until at least `wanted` malformed calls were made.
    void run(int wanted);

  private:
    static constexpr std::size_t kBufferBytes = 4096, kScratchBytes = std::size_t{1} << 20;

    static void expect_ok(attnsmith_code code) {
        if (code != ATTNSMITH_OK) give_up("a valid call failed with code " + std::to_string(code));
    }

    static RuntimeHandle open(const std::string& cache, const char* nvrtc);
    static void warm(attnsmith_runtime* runtime, Kind kind);
    // The kernels that are prepared without sizes and with those that the fuzzer gives.
    static void warm_for_sizes(attnsmith_runtime* runtime, Kind kind);
    static CallHandle valid_call(Kind kind, const attnsmith_kernel* kernel);
    attnsmith_error** error_slot() { return one_in(8) ? nullptr : &error_; }

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
        if (code < 0 || code > ATTNSMITH_CODE_KERNEL_MISSING) wrong("no code of the header");
        if (code == ATTNSMITH_CODE_FAILED) wrong("an error without a kind");
        if (broken_.empty()) wrong("a valid call failed");
        if (!untouched()) wrong("an output was written");
        if (error_ == nullptr) return;  // the caller wanted none
        if (attnsmith_error_code(error_) != code) wrong("another code in the object");
        const json details = json::parse(attnsmith_error_details(error_));
        if (details.at("message") != attnsmith_error_message(error_)) wrong("another message in the details");
        if (!details.at("code").is_string()) wrong("no code in the details");
        if (details.value("field", "") != attnsmith_error_field(error_))
            wrong("another field in the details");
        if (details.value("driver_code", 0) != attnsmith_error_driver_code(error_))
            wrong("another driver code in the details");
        if (code == ATTNSMITH_CODE_INVALID_REQUEST &&
            (details.at("field") == "" || details.at("accepted") == "" || !details.contains("value"))) {
            wrong("no field");
        }
        if (!field_.empty() && code == ATTNSMITH_CODE_INVALID_REQUEST) judge_field(details.at("field"));
        attnsmith_error_free(error_);
        error_ = nullptr;
    }

    // Values of a spec are named as JSON does, what is no value of an enumeration within the struct.
    void judge_field(std::string field);
    // A text that was handed out is JSON, and only on success.
    void judge_json(attnsmith_code code, char* const& text);
    // What was bound lies within the address space, and within itself.
    void check_bound(const std::vector<FuzzTensor>& tensors);

    attnsmith_spec any_valid_spec() { return valid_spec(kKinds[below(std::size(kKinds))]); }
    void versions();
    void frees();
    void runtime_create();
    void devices_json();
    void parse_request();
    void request_json();
    void model_json();
    void coverage_json();
    void recorded_json();
    void plan_json();
    void prewarm();
    void bundle();
    void cache();
    void prepare();
    // A spec that is wrong may show only when the kernel is asked for.
    void prepare_async();
    void pending_kernel();
    const attnsmith_kernel* any_kernel() { return or_null(kernels_[below(kernels_.size())].get(), "kernel"); }
    const attnsmith_call* any_call() { return or_null(calls_[below(calls_.size())].get(), "call"); }
    void kernel_spec();
    void set_spec();
    // A bound, and its name.
    std::pair<const char*, std::int64_t*> any_bound(attnsmith_workspace_bounds& bounds);
    void kernel_plan_json();
    void workspace_bytes();
    void bind();
    void run_once();
    // The kernel of the other op is wrong, whatever the tensors are.
    const attnsmith_kernel* kernel_of_attention(std::size_t kind);
    const attnsmith_kernel* kernel_of_merge(Kind kind);
    void prepare_set();
    // What is picked is the kernel that is prepared for these sizes, takes its tensors, and has no larger
    // workspace than the set says.
    void set_pick();
    // The key of the step that does the op's work, as the plan says: the first but for one that widens keys.
    static std::string main_kernel(const attnsmith_kernel* kernel);
    void set_workspace_bytes();
    const attnsmith_kernel* kernel_of_append(Kind kind);
    template <typename Call>
    void append(Call call);
    void bind_append();
    void run_append();
    template <typename Call>
    void merge(Call call);
    void bind_merge();
    void run_merge();
    const attnsmith_kernel* kernel_of_top_k();
    void bind_top_k();
    void run_top_k();
    void launch();
    // The kernel is told the addresses that are given, and those that were bound of the others.
    void launch_at();
    // Whether the arguments of the last launch have this address.
    static bool was_told(std::uintptr_t address);
    void call_keep_alive();
    void call_status();
    void call_clear_status();
    void call_copy_status();
    void call_describe();
    void allocate();
    void upload();
    void download();
    void workspace_clear();
    void call_synchronize();
    void synchronize();
    void report() const;
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

}  // namespace attnsmith::test
