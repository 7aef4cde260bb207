// Where options come from when the caller gives none: the only code that reads the environment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cache/remote/http.hpp"
#include "cache/remote/s3.hpp"
#include "cache/store/store.hpp"
#include "compiler/nvrtc_candidates.hpp"

namespace attnsmith::engine {

// How remotes of one kind are told who asks.
struct RemoteAccess {
    cache::HttpAccess access;
    std::string trouble;                // why none of them can be asked, with the remedy; empty: they can
    std::vector<std::string> warnings;  // what else is worth a look
};

// RuntimeOptions with everything decided.
struct Settings {
    std::vector<std::string> cache_dirs;  // absolute, the writable one first; empty: memory only
    std::vector<std::string> remotes;     // addresses, in the order in which they are asked
    std::string cache_dirs_named_by;      // the option or variable, for errors
    bool cache_dirs_from_options = false;
    std::string no_cache_because;  // why there is none
    cache::Trust cache_trust = cache::Trust::owner;
    std::vector<cache::PublicKey> trusted_keys;  // empty: bundles need no signature, and no remote is used
    bool push_compiled = false;                  // to remotes
    std::string sign_key_file;          // of exports and of what is pushed; empty: they are not signed
    std::string sign_key_named_by;      // the option or the variable that it is of
    std::uint64_t cache_max_bytes = 0;  // 0: no limit
    bool cache_source = true;           // entries hold their kernels' sources
    bool exact_toolchain = false;       // entries of other toolchains are left alone
    OnMiss on_miss = OnMiss::compile;
    std::string record_file;  // absolute; empty: none
    RemoteAccess http;        // of http:// and https:// addresses
    RemoteAccess s3;          // of s3:// addresses
    cache::S3Service s3_service;
    std::shared_ptr<cache::HttpClient> http_client;  // null: libcurl. Tests have others
    cache::FileSystem* file_system = nullptr;        // not owned; null: the real one. Tests have others
    std::vector<std::string> tuning_files;
    compiler::NvrtcOptions nvrtc;
    int compile_threads = 1;
    LogLevel log_level = LogLevel::warn;
    LogSink log;
    std::string keep_source_dir;
};

// Reads ATTNSMITH_CACHE_DIR, ATTNSMITH_CACHE_TRUST_KEYS and ATTNSMITH_TUNING (lists divided by ':'),
// ATTNSMITH_CACHE_SIGN_KEY, ATTNSMITH_CACHE_PUSH, XDG_CACHE_HOME, HOME, ATTNSMITH_NVRTC_PATH,
// ATTNSMITH_ON_MISS, ATTNSMITH_RECORD and ATTNSMITH_LOG; for remotes those of ATTNSMITH_CACHE_ with TOKEN,
// USER, NETRC, HEADERS, CERT, CERT_KEY and CA, and the file of NETRC; for s3:// addresses AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 and
// AWS_ENDPOINT_URL; none of them without RuntimeOptions::use_environment. What is wrong with those of remotes
// is RemoteAccess::trouble, since kernels can be compiled without them. Throws InvalidRequest for a variable
// that cannot be understood, for a key that cannot be read, and for options that contradict each other;
// CacheError where keys are named and nothing could verify a signature.
Settings settle(const RuntimeOptions& options);

// The list of ATTNSMITH_CACHE_DIR without passwords: addresses as shown_address() has them, and none of a
// list whose passwords cannot be told from the rest.
std::string shown_places(const std::string& list);

// The variables that NVRTC would read and that may change machine code, where they are set, with their values
// as they are now: NVRTC reads them at each compile.
std::vector<std::pair<std::string, std::string>> compiler_environment();

// Whether the key is one of those that settings name.
bool trusts(const Settings& settings, const cache::PublicKey& key);

}  // namespace attnsmith::engine
