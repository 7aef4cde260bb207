#include "ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

namespace attnsmith::gpu_tests {
namespace {

using check::CaseResult;
using nlohmann::ordered_json;

constexpr std::size_t kListed = 10;

ordered_json to_json(const Totals& totals) {
    return {{"passed", totals.passed}, {"failed", totals.failed}, {"skipped", totals.skipped}};
}

// Four significant digits: a ledger that is committed should not change in noise.
double short_number(double value) {
    return std::isfinite(value) ? std::stod(fmt::format("{:.4g}", value)) : value;
}

template <typename Field>
std::vector<const CaseResult*> largest(const std::vector<CaseResult>& results, const Field& field) {
    std::vector<const CaseResult*> order;
    for (const CaseResult& result : results) order.push_back(&result);
    std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return field(*a) > field(*b); });
    order.resize(std::min(order.size(), kListed));
    return order;
}

template <typename Key>
ordered_json counts_by(const std::vector<CaseResult>& results, const Key& key) {
    std::map<std::string, Totals> totals;
    for (const CaseResult& result : results)
        if (!key(result).empty()) totals[key(result)].count(result.outcome);
    ordered_json json = ordered_json::object();
    for (const auto& [name, total] : totals) json[name] = to_json(total);
    return json;
}

ordered_json slowest(const std::vector<CaseResult>& results) {
    ordered_json list = ordered_json::array();
    for (const CaseResult* r : largest(results, [](const CaseResult& c) { return c.milliseconds; }))
        list.push_back({{"case", r->full_name()}, {"milliseconds", short_number(r->milliseconds)}});
    return list;
}

ordered_json least_accurate(const std::vector<CaseResult>& results) {
    ordered_json list = ordered_json::array();
    for (const CaseResult* r : largest(results, accuracy_ratio)) {
        list.push_back({{"case", r->full_name()},
                        {"error_of_allowed", short_number(accuracy_ratio(*r))},
                        {"max_abs_error", short_number(r->max_abs_error)},
                        {"element", short_number(r->element_ratio)},
                        {"pooled", short_number(r->pooled_ratio)},
                        {"rounding", short_number(r->rounding_ratio)},
                        {"lse", short_number(r->lse_ratio)}});
    }
    return list;
}

// Cases in which the plain computation overflowed in all of some pool, which so had no bound.
ordered_json vacuous(const std::vector<CaseResult>& results) {
    ordered_json list = ordered_json::array();
    for (const CaseResult& r : results)
        if (r.vacuous_pools > 0) list.push_back(r.full_name());
    return list;
}

std::string toolchains(const std::vector<CaseResult>& results) {
    std::set<std::string> names;
    for (const CaseResult& result : results)
        if (!result.toolchain.empty()) names.insert(result.toolchain);
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

}  // namespace

void Totals::count(check::Outcome outcome) {
    switch (outcome) {
        case check::Outcome::passed:
            ++passed;
            break;
        case check::Outcome::failed:
            ++failed;
            break;
        case check::Outcome::skipped:
            ++skipped;
            break;
    }
}

Totals count(const std::vector<CaseResult>& results) {
    Totals totals;
    for (const CaseResult& result : results) totals.count(result.outcome);
    return totals;
}

double accuracy_ratio(const CaseResult& result) {
    return std::max({result.element_ratio, result.pooled_ratio, result.lse_ratio});
}

void write_ledger(const std::string& path, const LedgerHeader& header,
                  const std::vector<CaseResult>& results) {
    ordered_json json;
    json["sources"] = header.sources;
    json.update(to_json(count(results)));
    json["gpu"] = header.gpu;
    json["driver"] = header.driver;
    json["nvrtc"] = toolchains(results);
    json["seed"] = header.seed;
    json["seconds"] = short_number(header.seconds);
    json["groups"] = counts_by(results, [](const CaseResult& r) { return r.group; });
    json["backends"] = counts_by(results, [](const CaseResult& r) { return r.backend; });
    // By the attention kernel's tiles, so that each is seen to have run.
    json["kernels"] = counts_by(results, [](const CaseResult& r) { return r.kernel; });
    json["pooled_bound_vacuous"] = vacuous(results);
    json["slowest"] = slowest(results);
    json["least_accurate"] = least_accurate(results);
    std::ofstream file(path);
    file << json.dump(2) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace attnsmith::gpu_tests
