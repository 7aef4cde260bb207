// The remote layers of a cache: which are used, and what is fetched from them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cache/remote/remote.hpp"
#include "cache/store/store.hpp"
#include "cubins/cubin.hpp"
#include "cubins/kernel_source.hpp"
#include "settings/environment.hpp"
#include "settings/log.hpp"

namespace attnsmith::engine {

// Why no remote may be used: nobody's signature is trusted. Empty where some may.
std::string why_no_remote_is_trusted(const Settings& settings);

// Opens remotes by libcurl, with one client for all that are told alike who asks, or by the client that tests
// have.
class RemoteOpener {
  public:
    explicit RemoteOpener(const Settings& settings) : settings_(settings) {}  // which must outlive it
    // Fails with why a remote of this address cannot be asked, and the remedy.
    cache::Result<std::unique_ptr<const cache::Remote>> open(const std::string& address,
                                                             const cache::Signers& signers);

  private:
    const Settings& settings_;
    std::map<const RemoteAccess*, std::shared_ptr<cache::HttpClient>> clients_;
};

// Thread-safe, also right after fork. What is fetched goes to the store's directory as well.
class Remotes {
  public:
    // Opens libcurl and a library for signatures where there is an address. A remote that cannot be used, or
    // may not, is passed over with one warning; keys that cannot be used are an Error (CacheError), for
    // without them nothing would be held against them.
    Remotes(const Settings& settings, const cache::Store& store, std::shared_ptr<const Log> log);

    bool empty() const { return remotes_.empty(); }

    struct Fetched {
        std::shared_ptr<const Cubin> cubin;  // null: no remote has one that is taken
        std::string not_stored_because;      // empty: it is in the directory now
        std::vector<std::string> said;       // why there is none, by remote
        bool is_nowhere = true;              // every remote could be asked, and has none
    };
    using Accept = std::function<std::optional<std::string>(const Cubin&)>;
    // `only`: of this toolchain, else newest first. With `compiles`, two seconds at most, of which only so
    // many may be lost (cache::Breaker); else half a minute.
    Fetched fetch(const KernelSource& source, const Accept& accept, const std::optional<cache::Version>& only,
                  bool compiles, const std::stop_token& stop) const;

    // Puts the entry to every remote that lacks it. True: one did. Throws CacheError where one has it not in
    // the end, naming each such.
    bool push(const cache::Digest& key, const cache::Version& toolchain, const cache::Entry& entry,
              const std::stop_token& stop) const;

    // The same of what was just compiled, within the time that a remote may cost: that it failed is told
    // once.
    bool offer(const cache::Digest& key, const cache::Version& toolchain, const cache::Entry& entry,
               const std::stop_token& stop) const;

    // Throws CacheError where no remote is used, with why of those that are passed over.
    void require_used() const;
    // The same, and InvalidRequest where who trusts the keys that are trusted here would not take what is
    // pushed from here.
    void require_pushable() const;

    std::vector<std::string> names() const;  // of those that are used, without passwords
    // The key's id; empty: what is pushed is not signed.
    const std::string& signs_as() const { return signs_as_; }
    // Those that are passed over, with why.
    const std::vector<std::string>& passed_over() const { return passed_over_; }

  private:
    void pass_over(const std::string& address, const std::string& reason);

    const cache::Store& store_;
    std::shared_ptr<const Log> log_;
    std::vector<std::unique_ptr<const cache::Remote>> remotes_;
    std::vector<std::string> passed_over_;
    std::string signs_as_;
    std::string pushed_as_, cannot_push_because_;
    mutable std::atomic<bool> told_of_failure_ = false;
    mutable std::atomic<bool> told_of_denial_ = false;
    mutable std::atomic<bool> told_of_failed_push_ = false;
};

}  // namespace attnsmith::engine
