// The part of libcurl that the HTTP client uses. Declared here, so that building needs none of its headers:
// the numbers and types are those of its stable ABI (libcurl.so.4). Internal to cache/.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "cache/files/status.hpp"
#include "cache/libraries/shared_library.hpp"

namespace attnsmith::cache {

struct CurlEasy;
struct CurlMulti;
struct CurlUrl;
struct CurlList {
    char* text;
    CurlList* next;
};

// A CURLcode: how a transfer ended.
enum class CurlCode : int {
    ok = 0,
    not_resolved_proxy = 5,
    not_resolved = 6,
    not_connected = 7,
    partial_file = 18,
    out_of_memory = 27,
    timed_out = 28,
    got_nothing = 52,
    send_error = 55,
    receive_error = 56,
};

// A CURLoption; the ten thousands tell what it takes.
enum class CurlLong : int {
    upload = 46,
    follow_location = 52,
    verify_peer = 64,
    ssl_version = 32,
    http_get = 80,
    verify_host = 81,
    http_version = 84,
    no_signal = 99,
    http_auth = 107,
    timeout_ms = 155,
    connect_timeout_ms = 156,
    protocols = 181,
    redirect_protocols = 182,
    header_option = 229,
    suppress_connect_headers = 265,
    http_09_allowed = 285,
    quick_exit = 322,  // since 7.87
};
enum class CurlText : int {  // copied by libcurl
    url = 10002,
    user_agent = 10018,
    client_certificate = 10025,
    ca_file = 10065,
    client_key = 10087,
    ca_folder = 10097,
    user = 10173,
    password = 10174,
};
enum class CurlPointer : int {
    write_data = 10001,
    read_data = 10009,
    error_buffer = 10010,
    http_header = 10023,
    header_data = 10029,
    seek_data = 10168,
};
enum class CurlFunction : int {
    write = 20011,
    read = 20012,
    header = 20079,
    open_socket = 20163,
    seek = 20167,
    close_socket = 20208,
};
enum class CurlOffset : int { upload_size = 30115 };
enum class CurlMultiLong : int { max_connects = 6, max_total_connections = 13 };

// What the options' values are called in libcurl.
inline constexpr long kCurlHttp = 1, kCurlHttps = 2;    // CURLPROTO_*
inline constexpr long kCurlBasic = 1;                   // CURLAUTH_BASIC
inline constexpr long kCurlHttp11 = 2;                  // CURL_HTTP_VERSION_1_1
inline constexpr long kCurlTls12 = 6;                   // CURL_SSLVERSION_TLSv1_2
inline constexpr long kCurlHeadersSeparate = 1;         // CURLHEADER_SEPARATE
inline constexpr int kCurlInfoOsError = 0x200000 + 25;  // CURLINFO_OS_ERRNO
inline constexpr int kCurlMessageDone = 1;              // CURLMSG_DONE
inline constexpr std::size_t kCurlErrorSize = 256;      // CURL_ERROR_SIZE
inline constexpr unsigned kCurlUrlDecode = 1 << 6;      // CURLU_URLDECODE
inline constexpr unsigned kCurlDefaultPort = 1 << 0;    // CURLU_DEFAULT_PORT

// A CURLUPart.
enum class CurlUrlPart : int { url, scheme, user, password, options, host, port, path, query, fragment };

struct CurlMessage {
    int kind;
    CurlEasy* easy;
    union {
        void* whatever;
        CurlCode result;
    } data;
};

// As much of curl_version_info_data as its first version had.
struct CurlVersion {
    int age;
    const char* version;
    unsigned number;  // 0x075800 is 7.88.0
    const char* host;
    int features;
};

struct CurlSocketAddress {
    int family;
    int type;
    int protocol;
};

#define ATTNSMITH_CURL_FUNCTIONS(X)                                \
    X(global_init, int(long))                                      \
    X(version_info, CurlVersion*(int))                             \
    X(free, void(void*))                                           \
    X(slist_append, CurlList*(CurlList*, const char*))             \
    X(slist_free_all, void(CurlList*))                             \
    X(easy_init, CurlEasy*())                                      \
    X(easy_cleanup, void(CurlEasy*))                               \
    X(easy_reset, void(CurlEasy*))                                 \
    X(easy_setopt, CurlCode(CurlEasy*, int, ...))                  \
    X(easy_getinfo, CurlCode(CurlEasy*, int, ...))                 \
    X(easy_strerror, const char*(CurlCode))                        \
    X(multi_init, CurlMulti*())                                    \
    X(multi_cleanup, int(CurlMulti*))                              \
    X(multi_setopt, int(CurlMulti*, int, ...))                     \
    X(multi_add_handle, int(CurlMulti*, CurlEasy*))                \
    X(multi_remove_handle, int(CurlMulti*, CurlEasy*))             \
    X(multi_perform, int(CurlMulti*, int*))                        \
    X(multi_poll, int(CurlMulti*, void*, unsigned, int, int*))     \
    X(multi_info_read, CurlMessage*(CurlMulti*, int*))             \
    X(url, CurlUrl*())                                             \
    X(url_cleanup, void(CurlUrl*))                                 \
    X(url_get, int(const CurlUrl*, CurlUrlPart, char**, unsigned)) \
    X(url_set, int(CurlUrl*, CurlUrlPart, const char*, unsigned))

// Function `curl_x` as `x`.
struct CurlLibrary {
    explicit CurlLibrary(SharedLibrary opened) : library(std::move(opened)) {}

    template <class F>
    using Function = F*;

    SharedLibrary library;
    std::string version;  // "7.88.1"
#define ATTNSMITH_CURL_DECLARE(name, type) Function<type> name = nullptr;
    ATTNSMITH_CURL_FUNCTIONS(ATTNSMITH_CURL_DECLARE)
#undef ATTNSMITH_CURL_DECLARE
};

inline constexpr const char* kCurlNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};

// Opens the first of `names` that is libcurl 7.75 or newer, and has it initialise itself. ENOENT, with the
// remedy, where none is. Thread-safe.
Result<CurlLibrary> open_curl_library(std::span<const char* const> names);

// The one of kCurlNames, opened once in a process. A failure is not kept: it may be installed later.
Result<const CurlLibrary*> curl_library();

}  // namespace attnsmith::cache
