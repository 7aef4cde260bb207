// Which of the cache's kernels an export or a push takes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cache/digest/digest.hpp"
#include "cache/store/store.hpp"
#include "engine/named_specs.hpp"
#include "engine/runtime_access.hpp"

namespace attnsmith::engine {

struct NeededKernel {
    std::string name;
    int sm = 0;
};

class Selection {
  public:
    // All kernels, those for `sms`, or only those that planning could choose for `specs`, on `sms` or else on
    // those that the cache has anything for. Of a coverage, which outlives this, it is so for its specs.
    // Throws InvalidRequest for an SM that there is not, and for specs together with a coverage.
    Selection(const RuntimeImpl& runtime, const std::vector<int>& sms,
              const std::optional<std::vector<AttentionSpec>>& specs,
              const std::optional<Coverage>& coverage);

    // Also a broken entry that does not say its SM: it may be one of these, and who reads it tells what is
    // wrong.
    bool wants(const cache::ListedEntry& entry) const;
    // "kernels of the model for sm 80, 90"
    std::string describe() const;

    // What the specs need beside the keys that were found. SMs of which there is nothing and that nobody
    // named are other machines' business, here and for tell_unsupported().
    std::map<cache::Digest, NeededKernel> missing(const std::set<cache::Digest>& found) const;
    // What no kernel serves, and what is to be said of the coverage, in a report that has members for it.
    template <class Report>
    void tell_unsupported(Report& report) const {
        report.unsupported = sms_.empty() ? std::vector<PrewarmRefusal>() : not_served_;
        if (coverage_ != nullptr) add_coverage(*coverage_, named_, report);
    }

  private:
    std::vector<int> sms_;
    bool by_specs_;
    const Coverage* coverage_;                      // null without one
    NamedSpecs named_;                              // the coverage's
    std::map<cache::Digest, NeededKernel> needed_;  // by the specs
    std::vector<PrewarmRefusal> not_served_;
};

}  // namespace attnsmith::engine
