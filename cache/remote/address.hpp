// Addresses of remotes, and lists of cache places that hold them: directories, bundles and addresses. An
// address may hold a password, so what cannot be read for certain is a fault whose text is never shown.
// Internal to cache/, and for code that reads such lists.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attnsmith::cache {

// True for an address of http, https or s3, with its scheme in small letters.
bool is_remote_address(std::string_view text);
// The address without user, password, query and fragment.
std::string shown_address(std::string_view url);
// The host of an address, without user and port; the bucket of an s3 address.
std::string host_of(std::string_view address);
// True if the address names a user.
bool names_user(std::string_view address);

// The parts of a list that is divided by ':'. The colons of an address (after its scheme, in its user-info,
// before its port and in its query) divide nothing. Empty parts are dropped.
std::vector<std::string> split_places(std::string_view list);

enum class PlaceFault {
    user_info,   // neither a directory nor an address whose user-info, host and port can be read
    after_host,  // it has an @ or %40 and comes after an address that may end within a password
    misspelt,    // it was meant for an address, but would be a directory's name
};

struct FaultyPlace {
    std::size_t index;
    PlaceFault fault;
};

// The first part that is an error, if any. A part that begins with /, ./ or ../ is a directory, whatever it
// holds; with `divided`, for the parts of split_places, a password that has a colon may have been divided,
// which makes an error of such directories, too.
std::optional<FaultyPlace> faulty_place(std::span<const std::string> parts, bool divided);

// True if a message about these parts must show none of their text.
bool may_hold_password(std::span<const std::string> parts);

}  // namespace attnsmith::cache
