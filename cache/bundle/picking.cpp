#include "cache/bundle/picking.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/bundle/bundle.hpp"

namespace attnsmith::cache {

std::optional<JudgedEntry> pick(const Layer& layer, const ListedEntry& listed, const Options& options,
                                LeftOut& left_out) {
    JudgedEntry judged = judge_entry(layer, {listed.key, listed.version}, options, Depth::content);
    switch (judged.verdict) {
        case Verdict::sound:
            return judged;
        case Verdict::gone:
            break;
        case Verdict::of_another_format:
            ++left_out.skipped;
            break;
        case Verdict::unreadable:
        case Verdict::untrusted:
        case Verdict::broken:
            left_out.bad.push_back({listed.path, judged.status.message, "left out"});
            break;
    }
    return std::nullopt;
}

void sort_for_export(std::vector<ListedEntry>& entries) {
    std::ranges::stable_sort(entries, [](const ListedEntry& a, const ListedEntry& b) {
        return comes_first_in_bundle({a.key, a.version}, {b.key, b.version});
    });
}

bool have_one_name(const ListedEntry& a, const ListedEntry& b) {
    return a.key == b.key && a.version == b.version;
}

Status export_stopped(const Path& target) {
    return Status::from_errno(ECANCELED, "go on exporting", target.full());
}

}  // namespace attnsmith::cache
