#include "cache/remote/url.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "cache/remote/letters.hpp"

namespace attnsmith::cache {
namespace {

// Owns a CurlUrl.
class ParsedUrl {
  public:
    explicit ParsedUrl(const CurlLibrary& curl) : curl_(curl), url_(curl.url()) {
        if (url_ == nullptr) throw std::bad_alloc();
    }
    ParsedUrl(const ParsedUrl&) = delete;
    ParsedUrl& operator=(const ParsedUrl&) = delete;
    ~ParsedUrl() { curl_.url_cleanup(url_); }

    // Null for `text` clears the part.
    bool set(CurlUrlPart part, const char* text) { return curl_.url_set(url_, part, text, 0) == 0; }

    std::optional<std::string> get(CurlUrlPart part, unsigned flags = 0) const {
        char* found = nullptr;
        if (curl_.url_get(url_, part, &found, flags) != 0 || found == nullptr) return std::nullopt;
        const std::unique_ptr<char, void (*)(void*)> owner(found, curl_.free);
        return std::string(found);
    }

  private:
    const CurlLibrary& curl_;
    CurlUrl* url_;
};

std::optional<Url> read_parts(ParsedUrl& parsed) {
    Url url;
    url.scheme = in_small_letters(parsed.get(CurlUrlPart::scheme).value_or(""));
    if (url.scheme != "http" && url.scheme != "https") return std::nullopt;
    url.host = in_small_letters(parsed.get(CurlUrlPart::host).value_or(""));
    if (url.host.empty()) return std::nullopt;
    url.port = parsed.get(CurlUrlPart::port, kCurlDefaultPort).value_or("");
    url.path = parsed.get(CurlUrlPart::path).value_or("/");
    url.query = parsed.get(CurlUrlPart::query).value_or("");
    for (const CurlUrlPart part : {CurlUrlPart::user, CurlUrlPart::password}) {
        if (!parsed.get(part)) continue;
        // What cannot be decoded has a control character.
        const std::optional<std::string> decoded = parsed.get(part, kCurlUrlDecode);
        if (!decoded) return std::nullopt;
        if (!url.user) url.user.emplace();
        (part == CurlUrlPart::user ? *url.user : url.password) = *decoded;
    }
    for (const CurlUrlPart part :
         {CurlUrlPart::user, CurlUrlPart::password, CurlUrlPart::options, CurlUrlPart::fragment})
        parsed.set(part, nullptr);
    url.text = parsed.get(CurlUrlPart::url).value_or("");
    parsed.set(CurlUrlPart::query, nullptr);
    url.shown = parsed.get(CurlUrlPart::url).value_or("");
    if (url.text.empty() || url.shown.empty()) return std::nullopt;
    return url;
}

}  // namespace

std::optional<Url> parse_url(const CurlLibrary& curl, std::string_view text) {
    if (std::any_of(text.begin(), text.end(), is_blank_or_control)) return std::nullopt;
    ParsedUrl parsed(curl);
    if (!parsed.set(CurlUrlPart::url, std::string(text).c_str())) return std::nullopt;
    return read_parts(parsed);
}

std::optional<Url> parse_redirect(const CurlLibrary& curl, const Url& base, std::string_view location) {
    if (location.empty() || std::any_of(location.begin(), location.end(), is_blank_or_control))
        return std::nullopt;
    ParsedUrl parsed(curl);
    if (!parsed.set(CurlUrlPart::url, base.text.c_str()) ||
        !parsed.set(CurlUrlPart::url, std::string(location).c_str()))
        return std::nullopt;
    std::optional<Url> url = read_parts(parsed);
    if (url) {
        url->user.reset();
        url->password.clear();
    }
    return url;
}

std::string shown_without_secrets(std::string_view text) {
    if (const std::size_t at = text.rfind('@'); at != text.npos) text.remove_prefix(at + 1);
    text = text.substr(0, text.find_first_of("?#"));
    std::string shown(text);
    std::replace_if(shown.begin(), shown.end(), is_blank_or_control, '?');
    return shown;
}

std::string without_last_slashes(std::string_view text) {
    return std::string(text.substr(0, text.find_last_not_of('/') + 1));
}

}  // namespace attnsmith::cache
