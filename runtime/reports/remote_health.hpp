// How the remote layers of a cache are: whether they answer, whose kernels they have, and what time they say
// it is.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/remote/remote.hpp"
#include "reports/kernel_list.hpp"
#include "settings/environment.hpp"

namespace attnsmith::engine {

struct RemoteHealth {
    std::string address;           // without user, password and query
    bool encrypted = false;        // by TLS: the answer came from who has the name's certificate
    std::string not_used_because;  // nobody's signature is trusted there; empty if it is used
    cache::Status opened;          // why it cannot be asked, by the settings or for lack of libcurl
    cache::Status reached;         // of one that was asked. Success: it answered, whatever it was
    cache::Remote::Answer answer;
    // Which of the cache's kernels it has, the first that was found.
    std::size_t looked_for = 0;
    std::optional<cache::Digest> seen_key;
    cache::Remote::SeenManifest seen;
    cache::Status look;                    // what went wrong; success, too, where there is none
    std::optional<cache::Status> written;  // absent: not tried
};

// What all that is asked of one remote may take together.
inline constexpr std::chrono::seconds kLongestExamination{5};

// One after the other. `kernels` are what the cache has, some of which are looked for; with `write` each
// remote is given a line of text, which stays there. Nothing that is fetched is kept.
std::vector<RemoteHealth> examine_remotes(const Settings& settings, std::span<const KernelEntry> kernels,
                                          bool write);

}  // namespace attnsmith::engine
