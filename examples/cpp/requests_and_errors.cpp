// Words, requests and errors, without a GPU: a configuration in words becomes a spec, a file of requests and
// a model become a list of what to build, and each class of error is handled by what it has.
//
//   requests_and_errors CONFIG.json
#include <attnsmith/attnsmith.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace as = attnsmith;

namespace {

// A word of a program's own configuration.
template <class Enumeration>
Enumeration word(std::string_view name, std::string_view text) {
    if (const std::optional<Enumeration> value = as::from_string<Enumeration>(text)) return *value;
    throw as::InvalidRequest(std::string(name), std::string(text), "a word of attnsmith's");
}

void words() {
    const auto dtype = word<as::DType>("kv_cache_dtype", "fp8_e4m3");  // an alias
    const auto scale = word<as::KvScale>("kv_cache_scale", "token_head");
    // The library that is loaded, which may be newer than the headers.
    std::cout << "attnsmith " << as::version() << ", " << as::features().size() << " features"
              << (as::has_feature("op:mla") ? ", latents among them" : "") << "\n";
    std::cout << as::to_string(dtype) << " has " << as::size_of(dtype) << " byte"
              << (as::is_fp8(dtype) ? ", and needs scales" : "")
              << (as::is_per_token(scale) ? " of each token" : "") << "\n";
}

void requests(const std::string& config_json) {
    // One request, with every default filled in.
    const as::AttentionRequest request =
        as::parse_request(R"({"head_dim": 128, "q_heads": 32, "kv_heads": 8, "mask": "causal", "sm": 90})");
    std::cout << as::to_json(request) << "\n";

    // A model, as one program serves it.
    const as::ModelOptions options = as::parse_model_options(R"({"kv": "paged", "page_size": 64})");
    const as::Model model = as::parse_model(config_json, options);
    std::cout << model.model_type << ": " << as::to_json(model).size() << " bytes of JSON\n";

    // All that a fleet needs: a model in two storages, a request of another program, a recorded file.
    as::Coverage all = as::model_coverage(config_json, R"({"kv": ["paged", "dense"]})");
    all.add(as::request_coverage(R"({"head_dim": 64, "q_heads": 16, "dtype": ["bf16", "fp16"]})"), "other/");
    all.add(as::recorded_coverage(
        R"({"schema": "attnsmith.recorded/1", "request": {"op": "merge", "head_dim_vo": 64, "q_heads": 8}})",
        "today.jsonl"));
    as::AttentionRequest typed;
    typed.spec = {.head_dim_qk = 128, .q_heads = 32, .kv_heads = 8, .mask = as::Mask::causal};
    all.add(as::coverage_of({typed}), "typed/");
    std::cout << all.specs().size() << " specs; " << as::to_json(all).size() << " bytes of JSON\n";
}

void report(const as::Error& error) {
    std::cout << as::to_string(error.kind()) << ": " << error.details_json() << "\n";
}

// What each class has besides its message.
template <class Action>
void attempt(Action action) {
    try {
        action();
    } catch (const as::InvalidRequest& error) {
        report(error);
        std::cout << "correct " << error.field() << ", which is " << error.value() << ", to "
                  << error.accepted() << "\n";
    } catch (const as::Unsupported& error) {
        report(error);
        for (const as::Refusal& refusal : error.refusals())
            std::cout << "not " << refusal.candidate << ": " << refusal.reason << "\n";
    } catch (const as::KernelMissing& error) {
        report(error);
        std::cout << "build " << error.key() << " for sm " << error.sm() << " by: " << error.command() << "\n"
                  << "request: " << error.request() << "\n";
    } catch (const as::CompileError& error) {
        report(error);
        std::cout << "options: " << error.options().size() << "\n"
                  << error.log() << "\n"
                  << error.numbered_source();
    } catch (const as::DriverError& error) {
        report(error);
        std::cout << error.call() << " gave " << error.driver_code() << ": " << error.meaning() << "\n";
    } catch (const as::LibraryMissing& error) {
        report(error);
        std::cout << error.library() << " is none of " << error.tried().size() << " files\n";
    } catch (const as::CacheError& error) {
        report(error);
        std::cout << "look at " << (error.path().empty() ? "the options" : error.path()) << "\n";
    }
}

void errors() {
    const as::Runtime runtime({.use_cache = false, .on_miss = as::OnMiss::error});
    const as::AttentionSpec spec{.head_dim_qk = 128, .q_heads = 32};
    const as::PlanSizes sizes{.batch = 8, .q_len = 1, .kv_len = 4096};
    std::cout << runtime.plan_json(spec, sizes, 90).size() << " bytes of a plan for sm 90\n";
    attempt([&] { (void)runtime.plan_json({.head_dim_qk = 128, .q_heads = 0}, sizes, 90); });
    attempt([&] {
        (void)runtime.plan_json({.dtype = as::DType::fp32, .head_dim_qk = 64, .q_heads = 1}, sizes, 90);
    });
    attempt([&] { (void)runtime.cache().list(); });  // there is none
    attempt([&] {
        std::cout << as::to_json(runtime.devices()) << "\n";
        (void)runtime.prepare(spec, sizes);  // without a compiler
    });
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::cerr << "usage: requests_and_errors CONFIG.json\n";
        return 2;
    }
    std::ifstream file(arguments[1]);
    const std::string config_json{std::istreambuf_iterator<char>(file), {}};
    try {
        words();
        requests(config_json);
        errors();
    } catch (const as::Error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
