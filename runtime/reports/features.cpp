#include "reports/features.hpp"

#include "families/registry/registry.hpp"
#include "problem/request/ops.hpp"
#include "problem/vocabulary.hpp"
#include "reports/cache_operations.hpp"

namespace attnsmith::engine {

std::vector<std::string> features() {
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

}  // namespace attnsmith::engine
