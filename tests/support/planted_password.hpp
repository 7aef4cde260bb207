// Lists of cache places with a password in one of them, and everything that the library says of such a list
// without a network. For a property test and a fuzz target, which differ in where choices come from.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "cache/remote/address.hpp"
#include "cache/remote/http.hpp"
#include "cubins/remotes.hpp"
#include "reports/remote_health.hpp"
#include "reports/report_json.hpp"
#include "settings/environment.hpp"

namespace attnsmith::test {

inline constexpr const char* kSecret = "hush";

// A number below its argument.
using Choose = std::function<std::size_t(std::size_t)>;

// A list, in parts as cache_dirs takes them. One part is an address whose password has kSecret in it.
struct PlantedList {
    std::vector<std::string> places;
    bool encoded = false;  // the password is percent-encoded, and so the list can be read

    // As ATTNSMITH_CACHE_DIR takes them.
    std::string text() const {
        std::string list;
        for (const std::string& place : places) list += (list.empty() ? "" : ":") + place;
        return list;
    }
};

inline std::string percent_encoded(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string encoded;
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        encoded += '%';
        encoded += kDigits[byte >> 4];
        encoded += kDigits[byte & 15];
    }
    return encoded;
}

inline PlantedList plant_password(const Choose& choose) {
    const auto one_of = [&](std::initializer_list<const char*> words) -> std::string {
        return words.begin()[choose(words.size())];
    };
    // Without a scheme in it: what follows would be an address of its own.
    std::string password;
    const std::size_t before = choose(4), after = choose(4);
    for (std::size_t i = 0; i < before + 1 + after; ++i) {
        password +=
            i == before ? kSecret : one_of({"/",  ":",   "?",  "#", "@", ":/", "/:", "12", "12/", "a",
                                            "./", "../", "//", "%", "[", "]",  " ",  "\t", ".",   "::1"});
    }
    PlantedList list;
    list.encoded = choose(4) == 0;
    std::string address;
    if (list.encoded) {
        address = one_of({"http://", "https://"}) + one_of({"user", "", "me%40corp.invalid"}) + ":" +
                  percent_encoded(password) + "@" + one_of({"host", "host:8080", "[::1]", "[::1]:80"}) +
                  one_of({"/", "/k", "/k?sig=1"});
    } else {
        address = one_of({"http://", "https://", "s3://", "http://", "HTTP://", "Https://", "S3://",
                          "https:/", "http:", "s3:/", " http://", "http:/", "\thttps://"}) +
                  one_of({"user", "", "me@corp.invalid", "AKIA", "a.b", "me@corp"}) + ":" + password + "@" +
                  one_of({"host", "host:8080", "[::1]", "[::1]:80", "bucket", "127.0.0.1:1", "h st"}) +
                  one_of({"", "/", "/k", "/k?sig=1", "/x@1", "/k "});
    }
    list.places = {one_of({"/d", "./cache", "own"})};
    const auto add_others = [&](std::initializer_list<const char*> others) {
        for (std::size_t count = choose(3); count > 0; --count) list.places.push_back(one_of(others));
    };
    if (list.encoded) {
        add_others({"/e", "./a@b", "https://other/k", "s3://bucket/x", "/a@b"});
        list.places.push_back(address);
        add_others({"/e", "https://other/k", "s3://bucket/x", "http://u:p@other/k"});
    } else {
        add_others({"/e", "./a@b", "https://other", "s3://bucket/x", "/a@b", "http://u:p@other:1/k", "b@c"});
        list.places.push_back(address);
        add_others({"/e", "./a@b", "https://other", "s3://bucket/x", "/a@b", "http://u:p@other:1/k", "b@c"});
    }
    return list;
}

// Answers nothing, and remembers the hosts that it was to ask.
class AskedHosts : public cache::HttpClient {
  public:
    cache::Result<cache::HttpResponse> perform(const cache::HttpRequest& request) override {
        hosts += cache::host_of(request.url) + "\n";
        return cache::Status::recoverable_error(ECONNREFUSED, cache::shown_address(request.url), "refused");
    }
    std::string hosts;
};

struct Said {
    std::string text;     // every message, report and log line
    std::string hosts;    // that were to be asked, a line each
    std::string refusal;  // why the list is an error; empty: it was read
    std::vector<std::string> remotes;
};

inline void describe(const engine::Settings& read, Said& said) {
    engine::Settings settings = read;
    const auto client = std::make_shared<AskedHosts>();
    settings.http_client = client;
    settings.s3.trouble.clear();
    settings.s3_service.endpoint = "http://minio:9000";
    const auto log = std::make_shared<const engine::Log>(
        LogLevel::debug, [&](LogLevel, std::string_view line) { said.text += std::string(line) + "\n"; });
    const cache::Store store(cache::Options{});
    for (const cache::Trust trust : {cache::Trust::owner, cache::Trust::all}) {
        settings.cache_trust = trust;
        const engine::Remotes remotes(settings, store, log);
        for (const std::string& name : remotes.names()) said.text += name + "\n";
        for (const std::string& reason : remotes.passed_over()) said.text += reason + "\n";
        try {
            remotes.require_used();
            // A log line for each remote that fails.
            static_cast<void>(remotes.push(cache::Digest(1, 2), {}, {}, {}));
        } catch (const Error& error) {
            said.text += std::string(error.what()) + "\n";
        }
    }
    for (const engine::RemoteHealth& health : engine::examine_remotes(settings, {}, true)) {
        said.text +=
            health.address + "\n" + health.opened.to_string() + "\n" + health.reached.to_string() + "\n";
        if (health.written) said.text += health.written->to_string() + "\n";
    }
    said.text += engine::places_json(settings);
    for (const std::string& warning : settings.http.warnings) said.text += warning + "\n";
    said.hosts = client->hosts;
}

// Everything that is said of a list in ATTNSMITH_CACHE_DIR, which is left unset; with `as_option`, of the
// same places in RuntimeOptions::cache_dirs.
inline Said everything_said(const PlantedList& list, bool as_option) {
    Said said;
    RuntimeOptions options;
    if (as_option)
        options.cache_dirs = list.places;
    else
        ::setenv("ATTNSMITH_CACHE_DIR", list.text().c_str(), 1);
    try {
        const engine::Settings settings = engine::settle(options);
        said.remotes = settings.remotes;
        describe(settings, said);
    } catch (const InvalidRequest& error) {
        said.refusal = error.what();
        said.text += said.refusal + error.value() + error.accepted();
    }
    ::unsetenv("ATTNSMITH_CACHE_DIR");
    said.text += engine::shown_places(list.text());
    return said;
}

// True if a message shows the secret, or a host was to be asked that is part of a user-info.
inline bool leaks(const Said& said) {
    const auto has = [](const std::string& text, std::string_view part) {
        return text.find(part) != std::string::npos;
    };
    for (const std::string& secret : {std::string(kSecret), percent_encoded(kSecret)}) {
        if (has(said.text, secret) || has(said.hosts, secret)) return true;
    }
    for (const char* const user : {"user", "corp", "AKIA", "a.b"}) {
        if (has(said.hosts, user)) return true;
    }
    return false;
}

}  // namespace attnsmith::test
