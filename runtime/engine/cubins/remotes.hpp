// The remote layers of a cache: which are used, and what is fetched from them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/remote/remote.hpp"
#include "cache/store/store.hpp"
#include "engine/cubins/cubin.hpp"
#include "engine/cubins/kernel_source.hpp"
#include "engine/environment.hpp"
#include "engine/log.hpp"

namespace attnsmith::engine {

// Why a remote of this address is not to be asked, as far as settings tell, with the remedy; empty: it is.
std::string why_not_asked(const Settings& settings, const std::string& address);

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
    };
    using Accept = std::function<std::optional<std::string>(const Cubin&)>;
    // `only`: of this toolchain, else newest first. With `compiles`, two seconds at most, of which only so
    // many may be lost (cache::Breaker); else half a minute.
    Fetched fetch(const KernelSource& source, const Accept& accept, const std::optional<cache::Version>& only,
                  bool compiles, const std::stop_token& stop) const;

    // Puts the cubin's entry to every remote that lacks it. True: one did. Throws CacheError where one has it
    // not in the end, naming it.
    bool push(const KernelSource& source, const Cubin& cubin, bool with_source,
              const std::stop_token& stop) const;

    // Those that are passed over, with why.
    const std::vector<std::string>& passed_over() const { return passed_over_; }

  private:
    void pass_over(const std::string& address, const std::string& reason);

    const cache::Store& store_;
    std::shared_ptr<const Log> log_;
    std::vector<std::unique_ptr<const cache::Remote>> remotes_;
    std::vector<std::string> passed_over_;
    mutable std::atomic<bool> told_of_failure_ = false;
    mutable std::atomic<bool> told_of_denial_ = false;
};

}  // namespace attnsmith::engine
