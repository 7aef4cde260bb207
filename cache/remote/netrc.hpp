// A netrc file: users and passwords by host, as ftp has had it and curl reads it. Read here and not by
// libcurl, which says neither that it cannot be read nor that a host is not in it. Internal to cache/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

struct NetrcEntry {
    std::string machine = {};  // empty: "default", which is any host's
    std::string login = {};
    std::string password = {};
};

using Netrc = std::vector<NetrcEntry>;

// Words are `machine NAME`, `default`, `login NAME`, `password WORD`, `account WORD`, which is not used, and
// `macdef NAME`, which goes to the next empty line. A word in double quotes may have blanks, and \" \\ \n \r
// \t. A # at the beginning of a word is a comment. EBADMSG for anything else, with the line and without its
// text.
Result<Netrc> parse_netrc(std::string_view text);

// Reads a regular file of at most 1 MiB, since it is read whole.
Result<Netrc> read_netrc(const std::string& file);

// The first that is for the host, whatever the case of its letters; null if there is none.
const NetrcEntry* entry_for(const Netrc& netrc, std::string_view host);

}  // namespace attnsmith::cache
