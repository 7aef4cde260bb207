// A remote layer: entries on an HTTP server, in the layout of Bazel's remote caches (FORMAT.md, "A remote").
// It is asked for what no directory has, and only what is signed as the options want is taken. Internal to
// cache/.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest/digest.hpp"
#include "cache/entries/entry.hpp"
#include "cache/files/status.hpp"
#include "cache/remote/address.hpp"  // of Remote::name()
#include "cache/remote/breaker.hpp"
#include "cache/remote/http.hpp"
#include "cache/remote/manifest.hpp"
#include "cache/signing/ed25519.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

// Whose manifests are believed, and who signs those that are written.
struct Signers {
    std::vector<PublicKey> trusted;    // empty: any manifest is taken, signed or not
    std::optional<SecretKey> own;      // absent: manifests are not signed
    const Ed25519* ed25519 = nullptr;  // REQUIRES: not null where there is any key
};

// Thread-safe, also right after fork, as its client is. Nothing throws but std::bad_alloc and what `offer`
// throws.
class Remote {
  public:
    // `url`: "https://cache.example/kernels". A user, a password or a query in it are never shown. `name` is
    // what people call it, where that is not the URL: "s3://bucket/kernels".
    Remote(std::string url, std::shared_ptr<HttpClient> client, Signers signers, std::string name = {});

    // Without user, password and query, for people.
    const std::string& name() const { return name_; }
    // By TLS: an answer is of who has the name's certificate.
    bool is_encrypted() const { return url_.starts_with("https://"); }

    struct Wanted {
        Digest key;
        std::string target;
        std::optional<Version> only{};  // absent: any toolchain's, newest first
    };
    // Why an entry is not taken; nothing if it is.
    using Offer = std::function<std::optional<std::string>(const Version&, Entry)>;
    // How long all of a fetch or a push may take. Where `counts`, it is time lost, since a compile would do
    // as well or nobody waits for the push, and only so much of it may be (Breaker).
    struct Patience {
        std::chrono::milliseconds limit{0};
        bool counts = true;
    };

    // Success: `offer` took an entry. ENOENT where the remote has none; EACCES where S3 does not say whether
    // it has one, because whoever asks may not list the bucket, or may read nothing in it; EAGAIN while it is
    // left alone after failures; ECANCELED; EPERM where no manifest is signed as it must be; EBADMSG where
    // bytes are not what was promised; EREMOTEIO for what the server answered; else as HttpClient. The path
    // is the remote's name.
    Status fetch(const Wanted& wanted, const Offer& offer, Patience patience,
                 const std::stop_token& stop = {}) const;

    // Puts the entry, its manifest and the hint, in this order; what is there stays. EINVAL where the entry's
    // metadata has no key fields; EAGAIN while the remote is left alone after pushes that failed. True:
    // something was new.
    Result<bool> push(const Digest& key, const Version& toolchain, const Entry& entry, Patience patience,
                      const std::stop_token& stop = {}) const;

    // What is asked by who wants to know how the remote is, and not for a kernel: nothing of it counts as a
    // failure, and a remote that is left alone is asked all the same.

    struct Answer {
        int status = 0;  // 404 is a good one: the probe need not be there
        std::string
            fault{};  // why it is no answer of a remote, such as another page with 200; empty: it is one
        std::chrono::steady_clock::duration took{};  // the name, the connection and TLS included
        std::optional<std::chrono::system_clock::duration> ahead{};  // of our clock; absent: it gives no date
    };
    // Asks for the probe, a line of text that is the same everywhere.
    Result<Answer> ask(std::chrono::milliseconds limit) const;
    // Puts the probe and reads it again. It stays there: whoever puts it, and however often, it is the same
    // file. EBADMSG where something else is read.
    Status put_probe(std::chrono::milliseconds limit) const;

    struct SeenManifest {
        Version toolchain;
        std::string signed_by;  // the key's id; empty: it is not signed
        Status judged;          // why it would not be taken; success if it would
    };
    // The manifest of the key's newest entry there. ENOENT: it has none.
    Result<SeenManifest> look(const Digest& key, std::chrono::milliseconds limit) const;

  private:
    class Visit;

    Result<bool> push_within(const Digest& key, const Version& toolchain, const Entry& entry,
                             const Visit& visit) const;
    Result<std::vector<Version>> versions_there(const Digest& key, const Visit& visit) const;
    Result<SeenManifest> look_at(const Digest& key, const Visit& visit) const;
    Status fetch_newest(const Wanted& wanted, const Offer& offer, const Visit& visit) const;
    Status fetch_version(const Wanted& wanted, const Version& version, const Offer& offer,
                         const Visit& visit) const;
    Status check_signature(const ParsedManifest& parsed, std::span<const PublicKey> by) const;
    Result<bool> has_good_entry(const Manifest& ours, const Visit& visit) const;
    Result<std::string> signed_document(const Manifest& manifest) const;
    Status push_hint(const Digest& key, const Version& toolchain, const Visit& visit) const;
    Status at_remote(Status status) const;

    const std::string url_;
    const std::string name_;
    const std::shared_ptr<HttpClient> client_;
    const Signers signers_;
    // Apart, since a remote whose manifests are of no trusted key can be written all the same.
    mutable Breaker breaker_, push_breaker_;
};

}  // namespace attnsmith::cache
