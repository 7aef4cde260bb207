#include "cache/remote/address.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "cache/remote/letters.hpp"
#include "cache/remote/s3.hpp"

namespace attnsmith::cache {
namespace {

constexpr auto kNone = std::string_view::npos;

// What comes after "://"; empty where there is no scheme.
std::string_view after_scheme(std::string_view url) {
    const std::size_t scheme = url.find("://");
    return scheme == kNone ? std::string_view() : url.substr(scheme + 3);
}

// User, host and port, with the letters between them; empty where there is no scheme.
std::string_view authority_of(std::string_view url) {
    const std::string_view rest = after_scheme(url);
    return rest.substr(0, rest.find_first_of("/?#"));
}

bool has(std::string_view text, char letter) { return text.find(letter) != kNone; }

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// The number of a port, or nothing, which is the scheme's own.
bool is_port(std::string_view text) {
    unsigned number = 1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    return text.empty() || (is_number && number >= 1 && number <= 65535);
}

// "[::1]" at the beginning of a host, with its brackets; empty where there is none.
std::string_view ipv6_of(std::string_view host) {
    if (!host.starts_with('[')) return {};
    const std::size_t end = host.find_first_not_of("0123456789abcdefABCDEF:.%", 1);
    return end < host.size() && host[end] == ']' && end > 1 ? host.substr(0, end + 1) : std::string_view();
}

// What is left of an address's text after a host in brackets and its port.
std::string_view without_ipv6_host(std::string_view text) {
    const std::string_view host = ipv6_of(text);
    if (host.empty()) return text;
    text.remove_prefix(host.size());
    if (text.starts_with(':'))
        text.remove_prefix(std::min(text.find_first_not_of("0123456789", 1), text.size()));
    return text;
}

bool is_host_letter(char letter) {
    const char small = small_letter(letter);
    return is_digit(letter) || (small >= 'a' && small <= 'z') || has("-._~%", letter) ||
           static_cast<unsigned char>(letter) >= 0x80;
}

// A host, with or without a port.
bool is_host(std::string_view text) {
    std::string_view name = ipv6_of(text);
    if (name.empty()) {
        name = text.substr(0, text.find(':'));
        if (name.empty() || !std::ranges::all_of(name, is_host_letter)) return false;
    }
    const std::string_view port = text.substr(name.size());
    return port.empty() || (port.front() == ':' && is_port(port.substr(1)));
}

bool has_port(std::string_view authority) {
    const std::size_t user = authority.rfind('@');
    const std::string_view host = user == kNone ? authority : authority.substr(user + 1);
    return has(host.substr(ipv6_of(host).size()), ':');
}

// True if the text before an address's last @ may be a user-info. One with a /, ? or # that is not encoded
// ends what looks like the host; it has a colon, or its user is an e-mail address. An s3 address has no such
// text after its bucket, whose name has neither.
bool may_have_user(std::string_view address) {
    const std::string_view authority = authority_of(address), rest = after_scheme(address);
    if (has(authority, '@')) return true;
    const std::string_view before = is_s3_address(address) ? authority : rest.substr(0, rest.rfind('@'));
    return has(rest, '@') && has(without_ipv6_host(before), ':');
}

// True if user-info, host and port of an address can be told apart for certain.
bool is_certain(std::string_view address) {
    const std::string_view authority = authority_of(address);
    const std::string_view rest = after_scheme(address).substr(authority.size());
    const std::size_t user = authority.find('@');
    if (user == kNone) return !may_have_user(address) && (is_s3_address(address) || is_host(authority));
    if (has(rest, '@') || has(authority.substr(user + 1), '@')) return false;
    if (std::ranges::any_of(authority, is_blank_or_control)) return false;
    if (is_s3_address(address)) return true;  // which has no user, as s3_url() says
    return is_host(authority.substr(user + 1)) && std::ranges::none_of(rest, is_blank_or_control);
}

// An @, or one that was encoded with the rest of a password.
bool may_end_user_info(std::string_view text) { return has(text, '@') || text.find("%40") != kNone; }

bool is_plain_directory(std::string_view place) {
    return place.starts_with('/') || place.starts_with("./") || place.starts_with("../");
}

// "http" and the like, in any case, with blanks around it.
bool is_scheme(std::string_view text) {
    const auto first = std::ranges::find_if_not(text, is_blank_or_control);
    text.remove_prefix(static_cast<std::size_t>(first - text.begin()));
    while (!text.empty() && is_blank_or_control(text.back())) text.remove_suffix(1);
    return same_but_for_case(text, "http") || same_but_for_case(text, "https") ||
           same_but_for_case(text, "s3");
}

// True if a scheme and a colon stand at the beginning of a place or after one of its colons: "http:user",
// "/directory:https://host".
bool holds_scheme(std::string_view place) {
    if (place.find("://") != kNone) return true;
    while (true) {
        const std::size_t colon = place.find(':');
        if (colon == kNone) return false;
        if (is_scheme(place.substr(0, colon))) return true;
        place.remove_prefix(colon + 1);
    }
}

bool begins_like_address(std::string_view place) {
    const std::string small = in_small_letters(place);
    return small.starts_with("http:/") || small.starts_with("https:/") || small.starts_with("s3:/");
}

// What was meant for an address and would be a directory's name: everything would be compiled into it.
bool is_misspelt(std::span<const std::string> parts, std::size_t index, bool divided) {
    const std::string_view place = parts[index];
    if (is_remote_address(place)) return !is_s3_address(place) && host_of(place).empty();
    // "a, http://b" and "http:/b", divided at the colon.
    if (divided && (place.starts_with("//") || (is_scheme(place) && index + 1 < parts.size()))) return true;
    return begins_like_address(place) || place.find("://") != kNone;
}

std::optional<PlaceFault> fault_of(std::span<const std::string> parts, std::size_t index, bool divided) {
    const std::string_view place = parts[index];
    if (is_remote_address(place)) {
        if ((has(place, '@') || !host_of(place).empty()) && !is_certain(place)) return PlaceFault::user_info;
    } else if (has(place, '@') && (!is_plain_directory(place) || holds_scheme(place))) {
        return PlaceFault::user_info;
    }
    if (may_end_user_info(place)) {
        for (const std::string& before : parts.first(index)) {
            if (!is_remote_address(before)) continue;
            if (!has(after_scheme(before), '/')) return PlaceFault::after_host;
            // Of "user:12/34:/56@host" the password would be "12/34:/56".
            if (divided && !is_remote_address(place) && has_port(authority_of(before)))
                return PlaceFault::after_host;
        }
    }
    if (is_misspelt(parts, index, divided)) return PlaceFault::misspelt;
    return std::nullopt;
}

std::size_t end_of_query(std::string_view list, std::size_t query) {
    for (std::size_t colon = list.find(':', query); colon < list.size(); colon = list.find(':', colon + 1)) {
        const std::string_view next = list.substr(colon + 1);
        if (next.starts_with('/') || is_remote_address(next)) return colon;
    }
    return list.size();
}

// Where the part of a list that begins at `begin` ends.
std::size_t end_of_part(std::string_view list, std::size_t begin) {
    const std::string_view rest = list.substr(begin);
    if (!is_remote_address(rest)) return std::min(list.find(':', begin), list.size());
    const std::size_t host = begin + rest.find("://") + 3;
    const std::size_t path = std::min(list.find('/', host), list.size());
    // A user's password has a colon, too.
    const std::size_t user = list.substr(host, path - host).rfind('@');
    std::size_t begin_of_port = user == kNone ? host : host + user + 1;
    // An IPv6 address has colons, in brackets.
    if (begin_of_port < list.size() && list[begin_of_port] == '[')
        begin_of_port = std::min(list.find(']', begin_of_port), list.size());
    const std::size_t end = list.find(':', begin_of_port);
    if (end == kNone) return list.size();
    // A query, which may be a signature, goes on until what looks like another place.
    if (const std::size_t query = list.find('?', host); query < end) return end_of_query(list, query);
    const std::size_t after_digits = std::min(list.find_first_not_of("0123456789", end + 1), list.size());
    const bool is_port =
        after_digits > end + 1 && end < path &&
        (after_digits == list.size() || list[after_digits] == '/' || list[after_digits] == ':');
    return is_port ? std::min(list.find(':', after_digits), list.size()) : end;
}

}  // namespace

bool is_remote_address(std::string_view text) {
    return text.starts_with("http://") || text.starts_with("https://") || is_s3_address(text);
}

std::string shown_address(std::string_view url) {
    std::string shown(url);
    if (may_have_user(url)) {
        const std::size_t host = url.find("://") + 3;
        shown.erase(host, url.rfind('@') + 1 - host);
    }
    return shown.substr(0, shown.find_first_of("?#"));
}

std::string host_of(std::string_view address) {
    std::string_view host = authority_of(address);
    host.remove_prefix(host.rfind('@') + 1);
    const std::size_t bracket = host.find(']');  // of IPv6, with colons of its own
    const std::size_t port = host.find(':', bracket == kNone ? 0 : bracket);
    return std::string(host.substr(0, port));
}

bool names_user(std::string_view address) { return has(authority_of(address), '@'); }

std::vector<std::string> split_places(std::string_view list) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    while (begin <= list.size()) {
        const std::size_t end = end_of_part(list, begin);
        if (end > begin) parts.emplace_back(list.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::optional<FaultyPlace> faulty_place(std::span<const std::string> parts, bool divided) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (const auto fault = fault_of(parts, i, divided)) return FaultyPlace{i, *fault};
    }
    return std::nullopt;
}

bool may_hold_password(std::span<const std::string> parts) {
    return std::ranges::any_of(parts, [](std::string_view part) { return may_end_user_info(part); });
}

}  // namespace attnsmith::cache
