#include "reports/cache_push.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "cache/remote/http.hpp"
#include "engine/runtime_impl.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"
#include "reports/selection.hpp"
#include "reports/unreadable.hpp"

namespace attnsmith::engine {
namespace {

// Entries of one key and toolchain, the lowest layer's first: the first that is sound is pushed.
using SameEntries = std::vector<KernelEntry>;

std::vector<SameEntries> by_name(std::vector<KernelEntry> kernels) {
    std::vector<SameEntries> groups;
    for (KernelEntry& kernel : kernels) {
        const bool is_first = groups.empty() || groups.back().front().entry.key != kernel.entry.key ||
                              groups.back().front().entry.version != kernel.entry.version;
        if (is_first) groups.emplace_back();
        kernel.entry.metadata = {};  // most of it is source; an entry is read whole when its turn comes
        groups.back().push_back(std::move(kernel));
    }
    return groups;
}

// One push of a list of entries by several threads, each of which waits for servers most of the time.
class Pusher {
  public:
    Pusher(const Cubins& cubins, std::vector<SameEntries> entries, const CachePushOptions& options)
        : cubins_(cubins), entries_(std::move(entries)), options_(options), outcomes_(entries_.size()) {}

    // Throws what `progress` threw once all threads have ended.
    void run() {
        {
            std::vector<std::jthread> workers;
            const std::size_t useful =
                std::min<std::size_t>(cache::HttpClient::kMaxConnections, entries_.size());
            try {
                for (std::size_t i = 1; i < useful; ++i) workers.emplace_back([this] { work(); });
            } catch (const std::system_error&) {
                // No more threads to be had: those that there are do it.
            }
            work();
        }
        if (failure_) std::rethrow_exception(failure_);
    }

    // Adds what came out, in the order of the list.
    void report_to(CachePushReport& report) && {
        for (Outcome& outcome : outcomes_) {
            std::ranges::move(outcome.bad, std::back_inserter(report.bad));
            report.other_format += outcome.other_format;
            if (!outcome.entry) continue;
            const CachePushedEntry& entry = report.entries.emplace_back(*std::move(outcome.entry));
            if (entry.state == PushState::pushed) {
                ++report.pushed;
                report.bytes += entry.bytes;
            }
            if (entry.state == PushState::present) ++report.present;
            if (entry.state == PushState::failed) ++report.failed;
            if (entry.state == PushState::cancelled) ++report.cancelled;
        }
    }

  private:
    struct Outcome {
        std::optional<CachePushedEntry> entry{};  // absent where none of the same was sound
        std::vector<CacheBadEntry> bad{};
        std::uint64_t other_format = 0;
    };

    void work() {
        try {
            for (std::size_t i; (i = next_.fetch_add(1)) < entries_.size();) {
                outcomes_[i] = push_first_sound(entries_[i]);
                const std::lock_guard lock(progress_mutex_);
                ++done_;
                const std::optional<CachePushedEntry>& entry = outcomes_[i].entry;
                if (options_.progress && !failure_ && entry)
                    options_.progress(*entry, done_, static_cast<int>(entries_.size()));
            }
        } catch (...) {
            next_ = entries_.size();  // the others finish what they are at
            const std::lock_guard lock(progress_mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
    }

    Outcome push_first_sound(const SameEntries& same) const {
        Outcome outcome;
        for (const KernelEntry& kernel : same) {
            const cache::ListedEntry& listed = kernel.entry;
            CachePushedEntry pushed{.name = kernel.name,
                                    .sm = kernel.sm,
                                    .key = listed.key.hex(),
                                    .toolchain = listed.version.to_string(),
                                    .bytes = listed.bytes};
            outcome.entry.reset();
            if (options_.stop.stop_requested()) {
                outcome.entry = std::move(pushed);
                return outcome;
            }
            const auto entry = cubins_.store().read_for_export(listed);
            if (entry) {
                push(listed, *entry, pushed);
                outcome.entry = std::move(pushed);
                return outcome;
            }
            const cache::Status status = entry.status();
            if (cache::is_absence(status)) {
                pushed.state = PushState::gone;
                outcome.entry = std::move(pushed);
            } else if (status.error_number == EPROTONOSUPPORT) {
                ++outcome.other_format;
            } else {
                outcome.bad.push_back({.path = listed.path, .reason = status.message, .action = "left out"});
            }
        }
        return outcome;
    }

    void push(const cache::ListedEntry& listed, const cache::Entry& entry, CachePushedEntry& pushed) const {
        try {
            const bool is_new = cubins_.remotes().push(listed.key, listed.version, entry, options_.stop);
            pushed.state = is_new ? PushState::pushed : PushState::present;
        } catch (const CacheError& error) {
            pushed.state = options_.stop.stop_requested() ? PushState::cancelled : PushState::failed;
            pushed.error = error.what();
        }
    }

    const Cubins& cubins_;
    const std::vector<SameEntries> entries_;
    const CachePushOptions& options_;
    std::vector<Outcome> outcomes_;
    std::atomic<std::size_t> next_ = 0;
    std::mutex progress_mutex_;
    int done_ = 0;
    std::exception_ptr failure_;  // the first
};

std::vector<CacheMissingKernel> missing_of(const Selection& selection, const CachePushReport& report) {
    std::set<cache::Digest> found;
    for (const CachePushedEntry& entry : report.entries) {
        if (entry.state != PushState::gone) found.insert(cache::Digest::parse(entry.key).value());
    }
    std::vector<CacheMissingKernel> missing;
    for (const auto& [key, kernel] : selection.missing(found))
        missing.push_back({kernel.name, kernel.sm, key.hex()});
    return missing;
}

}  // namespace

CachePushReport push_entries(const RuntimeImpl& runtime, const CachePushOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    const Cubins& cubins = runtime.cubins;
    cubins.remotes().require_pushable();
    const Selection selection(runtime, options.sms, options.specs, options.coverage);
    cache::Listing listing = cubins.store().list_for_export(
        [&](const cache::ListedEntry& entry) { return selection.wants(entry); });
    // What the specs need is missing by name; without them, there is nothing to name.
    if (listing.entries.empty() && selection.missing({}).empty()) {
        throw CacheError(fmt::format(
            "there are no {} to push in {}{}", selection.describe(),
            fmt::join(runtime.settings.cache_dirs, ", "),
            listing.unreadable.empty() ? std::string() : "; " + unreadable_text(listing.unreadable)));
    }
    CachePushReport report;
    report.remotes = cubins.remotes().names();
    report.signed_by = cubins.remotes().signs_as();
    report.unreadable = report_of(listing.unreadable);
    selection.tell_unsupported(report);
    Pusher pusher(cubins, by_name(kernels_of(std::move(listing.entries))), options);
    pusher.run();
    std::move(pusher).report_to(report);
    report.missing = missing_of(selection, report);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
}

}  // namespace attnsmith::engine
