// Without a GPU: what a model's attention needs on an A100 and an H100, and all of it compiled into a cache
// folder, which then serves on machines without a compiler.
//
//   plan_and_prewarm CONFIG.json FOLDER
#include <attnsmith/attnsmith.hpp>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace as = attnsmith;

namespace {

// The exit code.
int plan_and_prewarm(const std::string& config_json, const std::string& folder) {
    as::Runtime runtime({.cache_dirs = {folder}});
    const as::Model model = as::parse_model(config_json);
    for (const as::ModelWarning& warning : model.warnings)
        std::cerr << warning.field << ": " << warning.text << "\n";
    for (const as::ModelAttention& attention : model.attentions)
        std::cout << attention.name
                  << " on an H100: " << runtime.plan_json(attention.request.spec, attention.request.sizes, 90)
                  << "\n";

    // Each spec once, in every combination of these words.
    const as::Coverage coverage = as::model_coverage(config_json, R"({"kv": ["paged", "dense"]})");
    const as::PrewarmReport report = runtime.prewarm(coverage, {80, 90});
    for (const as::PrewarmedKernel& kernel : report.kernels)
        std::cout << kernel.name << ", sm " << kernel.sm << ": " << to_string(kernel.state) << " "
                  << kernel.error << "\n";
    // What has no plan has no kernels either: a cache without them is not the whole model's.
    for (const as::PrewarmRefusal& refusal : report.unsupported)
        std::cerr << refusal.name << " is not supported: " << refusal.reason << "\n";
    std::cout << report.total << " kernels, " << report.compiled << " compiled in " << report.seconds
              << " s\n";
    return report.ok() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::cerr << "usage: plan_and_prewarm CONFIG.json FOLDER\n";
        return 2;
    }
    std::ifstream file(arguments[1]);
    std::string config_json;
    if (!std::getline(file, config_json, '\0')) {  // a folder can be opened, but not read
        std::cerr << arguments[1] << ": cannot be read, or is empty\n";
        return 1;
    }
    try {
        return plan_and_prewarm(config_json, arguments[2]);
    } catch (const as::Error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
