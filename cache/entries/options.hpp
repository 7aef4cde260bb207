// What a store is made with.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entries/entry.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/trust.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

// Told about trouble once for each store and kind; quarantines are told each. Called from any thread that
// uses the store; must not throw.
using WarnCallback = std::function<void(std::string_view)>;

inline constexpr std::uint64_t kDefaultMaxBytes = std::uint64_t{2} << 30;

struct Options {
    // (The `= {}` let a caller name only what it sets, without a warning of GCC's.)
    // Made when first needed, parents included, with mode 0700. What is made inside takes its permission
    // bits, whatever the umask, so a directory that was made 0755 beforehand can be baked into an image for
    // every user, and one of mode 2770 be shared by a group that trusts itself. Empty: nothing is kept.
    std::string directory = {};
    // Searched after `directory`; never written to. Directories, and bundles: a path that is a file when the
    // store is made is opened then, once. Others may appear later.
    std::vector<std::string> read_only_layers = {};
    // Whose directories and entries are used. Others are passed over, with one warning for each directory.
    Trust trust = Trust::owner;
    // Where there are any, bundles are used, as layers and for imports, only if one of them signed them
    // (FORMAT.md, "A bundle's signature"). Entries in directories are not signed: whatever `trust` says, only
    // those are loaded that the user or root owns and nobody else may write to.
    std::vector<PublicKey> trusted_keys = {};
    // What the entries of `directory` may take on its disk; the least recently used go first, but none that
    // was used within kStampIsOldAfter. Kept to within what a shard's size tells of the whole. 0: no limit.
    std::uint64_t max_bytes = kDefaultMaxBytes;
    // Not owned; must outlive the store. Null: posix_file_system().
    FileSystem* file_system = nullptr;
    WarnCallback warn = {};
    // Asked by verify(), import_bundle() and the exports, for whom an entry with a fault is broken. load()
    // leaves it to its caller, who knows what the entry is to be used for.
    CheckContent check_content = {};
    // The longest wait for another process or thread. Far above any compile: only for file systems that lie
    // and for holders that hang. Once one was in vain, further ones are a 120th of it, until one pays off.
    std::chrono::nanoseconds lock_wait = std::chrono::seconds(120);
};

}  // namespace attnsmith::cache
