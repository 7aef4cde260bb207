#include "reports/remote_health.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/remote/address.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "cubins/remotes.hpp"

namespace attnsmith::engine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostLookedFor = 8;

// Those used last, which a remote most likely has if it has any.
std::vector<cache::Digest> keys_to_look_for(std::span<const KernelEntry> kernels) {
    std::vector<const cache::ListedEntry*> entries;
    for (const KernelEntry& kernel : kernels) entries.push_back(&kernel.entry);
    std::ranges::stable_sort(entries, std::ranges::greater(), &cache::ListedEntry::modified);
    std::vector<cache::Digest> keys;
    for (const cache::ListedEntry* entry : entries) {
        if (keys.size() == kMostLookedFor) break;
        if (std::ranges::find(keys, entry->key) == keys.end()) keys.push_back(entry->key);
    }
    return keys;
}

class Examination {
  public:
    Examination(const cache::Remote& remote, RemoteHealth& health) : remote_(remote), health_(health) {}

    void run(std::span<const cache::Digest> keys, bool write) {
        auto answer = remote_.ask(left());
        health_.reached = answer.status();
        if (!answer) return;
        health_.answer = *answer;
        if (write) health_.written = remote_.put_probe(left());
        for (const cache::Digest& key : keys) {
            if (!look_for(key)) return;
        }
    }

  private:
    milliseconds left() const {
        return std::max(std::chrono::ceil<milliseconds>(end_ - Clock::now()), milliseconds(0));
    }

    // Whether it is worth looking on.
    bool look_for(const cache::Digest& key) {
        ++health_.looked_for;
        auto seen = remote_.look(key, left());
        if (!seen && seen.status().error_number == ENOENT) return true;
        health_.look = seen.status();
        if (!seen) return false;
        health_.seen_key = key;
        health_.seen = std::move(*seen);
        return false;
    }

    const cache::Remote& remote_;
    RemoteHealth& health_;
    const Clock::time_point end_ = Clock::now() + kLongestExamination;
};

}  // namespace

std::vector<RemoteHealth> examine_remotes(const Settings& settings, std::span<const KernelEntry> kernels,
                                          bool write) {
    std::vector<RemoteHealth> all;
    if (settings.remotes.empty()) return all;
    const std::vector<cache::Digest> keys = keys_to_look_for(kernels);
    cache::Signers signers{.trusted = settings.trusted_keys, .own = {}, .ed25519 = nullptr};
    if (!signers.trusted.empty()) {
        if (const auto library = cache::ed25519()) signers.ed25519 = *library;
    }
    RemoteOpener opener(settings);
    for (const std::string& address : settings.remotes) {
        RemoteHealth& health = all.emplace_back();
        health.address = cache::shown_address(address);
        health.not_used_because = why_no_remote_is_trusted(settings);
        const auto remote = opener.open(address, signers);
        health.opened = remote.status();
        if (!remote) continue;
        health.encrypted = (*remote)->is_encrypted();
        Examination(**remote, health).run(keys, write);
    }
    return all;
}

}  // namespace attnsmith::engine
