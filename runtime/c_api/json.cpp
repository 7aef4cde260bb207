// What comes as JSON or goes out as JSON: requests, models, plans, the cache. None of it needs a GPU.
#include "attnsmith/coverage.hpp"
#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/request.hpp"
#include "reports/cache_operations.hpp"

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_parse_request(const char* json, attnsmith_spec* spec, attnsmith_sizes* sizes,
                                       attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const std::string_view text = required_text(json, "json");
        const std::size_t spec_size = checked_size(spec, "spec");
        const std::size_t sizes_size = checked_size(sizes, "sizes");
        const AttentionRequest request = parse_request(text);
        write_spec(*spec, spec_size, request.spec);
        write_struct(*sizes, sizes_size, to_c(request.sizes));
    });
}

attnsmith_code attnsmith_request_json(const attnsmith_spec* spec, const attnsmith_sizes* sizes, char** json,
                                      attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        char*& result = required(json, "json");
        const AttentionRequest request{read_spec(spec, "spec"), read_sizes(sizes), {}};
        result = copy_text(to_json(request));
    });
}

attnsmith_code attnsmith_model_json(const char* config_json, const char* options, char** json,
                                    attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const std::string_view config = required_text(config_json, "config_json");
        char*& result = required(json, "json");
        const ModelOptions given = options == nullptr ? ModelOptions{} : parse_model_options(options);
        result = copy_text(to_json(parse_model(config, given)));
    });
}

attnsmith_code attnsmith_request_coverage_json(const char* request, char** json,
                                               attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const std::string_view given = required_text(request, "request");
        char*& result = required(json, "json");
        result = copy_text(to_json(request_coverage(given)));
    });
}

attnsmith_code attnsmith_model_coverage_json(const char* config_json, const char* options, char** json,
                                             attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const std::string_view config = required_text(config_json, "config_json");
        char*& result = required(json, "json");
        result = copy_text(to_json(model_coverage(config, options == nullptr ? "{}" : options)));
    });
}

attnsmith_code attnsmith_recorded_coverage_json(const char* text, const char* name, char** json,
                                                attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const std::string_view given = required_text(text, "text");
        const std::string_view file = required_text(name, "name");
        char*& result = required(json, "json");
        result = copy_text(to_json(recorded_coverage(given, file)));
    });
}

attnsmith_code attnsmith_plan_json(attnsmith_runtime* runtime, const attnsmith_spec* spec,
                                   const attnsmith_sizes* sizes, std::int32_t sm, char** json,
                                   attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Runtime& of = required(runtime, "runtime").runtime;
        char*& result = required(json, "json");
        result = copy_text(of.plan_json(read_spec(spec, "spec"), read_sizes(sizes), sm));
    });
}

attnsmith_code attnsmith_cache(attnsmith_runtime* runtime, const char* operation, const char* options,
                               char** json, attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Runtime& of = required(runtime, "runtime").runtime;
        const std::string_view asked = required_text(operation, "operation");
        char*& result = required(json, "json");
        result = copy_text(engine::run_cache_operation(of, asked, options == nullptr ? "{}" : options));
    });
}
