#include "reports/selection.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cubins/needed_kernels.hpp"
#include "engine/runtime_impl.hpp"
#include "families/traits.hpp"
#include "reports/kernel_list.hpp"

namespace attnsmith::engine {
namespace {

std::vector<int> sms_of(const std::vector<KernelEntry>& kernels) {
    std::set<int> sms;
    for (const KernelEntry& kernel : kernels) {
        if (kernel.sm != 0) sms.insert(kernel.sm);
    }
    return {sms.begin(), sms.end()};
}

}  // namespace

Selection::Selection(const RuntimeImpl& runtime, const std::vector<int>& sms,
                     const std::optional<std::vector<AttentionSpec>>& specs,
                     const std::optional<Coverage>& coverage)
    : sms_(sms), by_specs_(specs || coverage), coverage_(coverage ? &*coverage : nullptr) {
    for (const int sm : sms) (void)families::traits_of(sm);
    if (specs && coverage) throw InvalidRequest("coverage", "given together with specs", "one of the two");
    if (!by_specs_) return;
    if (coverage) named_ = named_specs(*coverage);
    const std::vector<int> asked = sms.empty() ? sms_of(list_kernels(runtime.cubins.store()).kernels) : sms;
    for (const families::KernelConfig& kernel :
         needed_kernels(specs ? *specs : named_.specs, asked, runtime.tuning, not_served_))
        needed_.emplace(runtime.cubins.source_of(kernel).key, NeededKernel{kernel.name(), kernel.sm});
}

bool Selection::wants(const cache::ListedEntry& entry) const {
    if (by_specs_ && !needed_.contains(entry.key)) return false;
    if (sms_.empty()) return true;
    const int sm = sm_of(entry);
    return sm == 0 || std::ranges::find(sms_, sm) != sms_.end();
}

std::string Selection::describe() const {
    std::string text = by_specs_ ? "kernels of the model" : "kernels";
    if (!sms_.empty()) text += fmt::format(" for sm {}", fmt::join(sms_, ", "));
    return text;
}

std::map<cache::Digest, NeededKernel> Selection::missing(const std::set<cache::Digest>& found) const {
    std::set<int> expected(sms_.begin(), sms_.end());
    for (const auto& [key, kernel] : needed_) {
        if (found.contains(key)) expected.insert(kernel.sm);
    }
    std::map<cache::Digest, NeededKernel> missing;
    for (const auto& [key, kernel] : needed_) {
        if (!found.contains(key) && expected.contains(kernel.sm)) missing.emplace(key, kernel);
    }
    return missing;
}

}  // namespace attnsmith::engine
