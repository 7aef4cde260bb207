#include "reports/features.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnsmith/version.hpp"
#include "families/registry/registry.hpp"
#include "problem/json_text.hpp"
#include "problem/request/ops.hpp"
#include "problem/vocabulary.hpp"
#include "reports/cache_operations.hpp"

namespace attnsmith::engine {

namespace {

std::vector<std::string> list_features() {
    std::vector<std::string> names;
    for (const std::string_view op : problem::kOpWords.names()) {
        if (problem::find_op(problem::kOpWords.parse("op", op)) != nullptr)
            names.push_back("op:" + std::string(op));
    }
    for (const families::Backend backend : families::all_backends())
        names.push_back("backend:" + std::string(to_string(backend)));
    for (const std::string_view operation : cache_operations())
        names.push_back("cache:" + std::string(operation));
    return names;
}

struct Features {
    std::vector<std::string> names = list_features();
    std::string json = problem::one_line(nlohmann::json(names));
};

// Made when the library is loaded and there for ever, so that asking cannot fail.
const Features& known = *new Features;

}  // namespace

const std::vector<std::string>& feature_names() noexcept { return known.names; }

const std::string& features_json() noexcept { return known.json; }

}  // namespace attnsmith::engine

namespace attnsmith {

std::string_view version() noexcept { return ATTNSMITH_VERSION; }

std::vector<std::string> features() { return engine::feature_names(); }

bool has_feature(std::string_view name) noexcept {
    return std::ranges::find(engine::feature_names(), name) != engine::feature_names().end();
}

}  // namespace attnsmith
