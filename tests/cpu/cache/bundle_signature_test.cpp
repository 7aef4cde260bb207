// Signatures of bundles: what an import and a layer take, and what they say of the rest.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "bundle_fixture.hpp"
#include "cache/bundle/bundle.hpp"
#include "cache/bundle/signature.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "faulty_file_system.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using namespace testing;

bool everything(const ListedEntry&) { return true; }

const Ed25519& library() { return *ed25519().value(); }

struct Keys {
    SecretKey secret = library().generate().value();
    PublicKey known = library().public_key_of(secret).value();
};

// A store with entries, and a bundle of them that a key signed.
struct Signed {
    TemporaryDirectory temporary;
    Keys keys, others;
    std::string bundle = temporary / "all.bundle", signature = bundle + ".sig";
    ExportReport report;

    explicit Signed(std::string_view payload = "one") {
        const Store store({.directory = temporary / "made"});
        REQUIRE(store.publish(kKey, kVersion, entry_of(payload)).ok());
        REQUIRE(store.publish(kOtherKey, kVersion, entry_of("another")).ok());
        report = store.export_bundle(bundle, everything, {}, &keys.secret).value();
    }

    Store importer(std::vector<PublicKey> trusted) const {
        return Store({.directory = temporary / "into", .trusted_keys = std::move(trusted)});
    }

    // What an import by who trusts these keys says; it must publish nothing where it refuses.
    Status refusal(std::vector<PublicKey> trusted) const {
        const Result<ImportReport> imported = importer(std::move(trusted)).import_bundle(bundle);
        REQUIRE_FALSE(imported.ok());
        CHECK(imported.status().recoverable());
        CHECK(count_files(temporary / "into") == 0);
        return imported.status();
    }
};

bool says(const std::string& text, std::initializer_list<std::string_view> parts) {
    UNSCOPED_INFO(text);
    return std::ranges::all_of(parts, [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace

TEST_CASE("an export with a key has its signature beside it", "[signing]") {
    const Signed made;
    CHECK(made.report.signature_file == made.signature);
    CHECK(made.report.signed_by == made.keys.known.id());
    const Bundle bundle = Bundle::open(posix_file_system(), made.bundle).value();
    const std::string lines = fmt::format("attnsmith.bundle-signature/1\nkey {}\nmanifest-sha256 {}\n",
                                          made.keys.known.id(), bundle.manifest_sha256().hex());
    const std::string text = read_text(made.signature);
    REQUIRE(text.starts_with(lines + "ed25519 "));
    CHECK(text.size() == lines.size() + 8 + 128 + 1);
    // What is signed is the lines above.
    CHECK(text == signature_text(library(), made.keys.secret, bundle.manifest_sha256()).value());
    const Signature signature = library().sign(made.keys.secret, bytes_of(lines)).value();
    CHECK(text.substr(lines.size() + 8, 2) == fmt::format("{:02x}", std::to_integer<int>(signature.front())));
    CHECK(count_files(made.temporary.path()) == count_files(made.temporary / "made") + 2);
    // Without a key it is as it always was.
    const Store store({.directory = made.temporary / "made"});
    const ExportReport plain = store.export_bundle(made.temporary / "plain.bundle", everything).value();
    CHECK(plain.signed_by.empty());
    CHECK(read_text(made.temporary / "plain.bundle") == read_text(made.bundle));
    CHECK_FALSE(std::filesystem::exists(made.temporary / "plain.bundle.sig"));
}

TEST_CASE("an import takes what a trusted key signed", "[signing]") {
    const Signed made;
    const Keys& keys = made.keys;
    for (const std::vector<PublicKey>& trusted :
         {std::vector{keys.known}, {made.others.known, keys.known}, {keys.known, made.others.known}}) {
        const Result<ImportReport> imported = made.importer(trusted).import_bundle(made.bundle);
        REQUIRE(imported.ok());
        CHECK(imported->entries == 2);
        CHECK(imported->signed_by == keys.known.id());
    }
    // Who asks for no signature is told of none.
    CHECK(made.importer({}).import_bundle(made.bundle)->signed_by.empty());
}

TEST_CASE("an import refuses what no trusted key signed, by name", "[signing]") {
    const Signed made;
    const PublicKey known = made.keys.known, other = made.others.known;
    Status status = made.refusal({other});
    CHECK(status.error_number == EPERM);
    CHECK(status.path == made.bundle);
    CHECK(says(status.message, {"key " + known.id() + " signed it", other.id() + " is trusted"}));

    const std::string text = read_text(made.signature);
    // The other's name on it.
    std::string named = text;
    named.replace(named.find("key ") + 4, 16, other.id());
    write_text(made.signature, named);
    CHECK(says(made.refusal({known, other}).message, {"is wrong", "not by key " + other.id()}));
    CHECK(made.refusal({known, other}).error_number == EPERM);

    std::filesystem::remove(made.signature);
    status = made.refusal({known});
    CHECK(status.error_number == EPERM);
    CHECK(says(status.message, {"it is not signed", made.signature, "--sign-key"}));

    for (const std::string& wrong :
         {std::string(), std::string("text"), text + "\n", text.substr(0, text.size() - 1), text + text,
          "\n" + text, std::string(5000, 'x')}) {
        write_text(made.signature, wrong);
        status = made.refusal({known});
        CHECK((status.error_number == EBADMSG || status.error_number == EINVAL));
        CHECK(status.path == made.signature);
    }
    // Not even an id that would draw on a terminal.
    named = text;
    named.replace(named.find("key ") + 4, 16, "\x1b[31mred\x1b[0m key");
    write_text(made.signature, named);
    CHECK(says(made.refusal({known}).message, {"key another key signed it"}));

    std::filesystem::remove(made.signature);
    REQUIRE(::mkfifo(made.signature.c_str(), 0644) == 0);
    CHECK(says(made.refusal({known}).message, {"not a regular file"}));
}

TEST_CASE("no byte of a signature or a manifest can be changed", "[signing]") {
    const Signed made;
    const std::string text = read_text(made.signature), bundle = read_text(made.bundle);
    for (std::size_t at = 0; at < text.size(); ++at) {
        std::string changed = text;
        changed[at] = changed[at] == '0' ? '1' : '0';
        write_text(made.signature, changed);
        static_cast<void>(made.refusal({made.keys.known}));
    }
    write_text(made.signature, text);
    const std::size_t manifest_end = bundle.find('\0', tar::kBlockBytes);
    for (std::size_t at = tar::kBlockBytes; at < manifest_end; ++at) {
        overwrite(made.bundle, at, bundle[at] == '0' ? '1' : '0');
        static_cast<void>(made.refusal({made.keys.known}));
        overwrite(made.bundle, at, bundle[at]);
    }
    CHECK(made.importer({made.keys.known}).import_bundle(made.bundle).ok());
}

TEST_CASE("the signature of another bundle is none of this one", "[signing]") {
    const Signed made;
    const Store store({.directory = made.temporary / "made"});
    REQUIRE(store.publish(kKey, {13, 1, 0}, entry_of("newer")).ok());
    const std::string newer = made.temporary / "newer.bundle";
    REQUIRE(store.export_bundle(newer, everything, {}, &made.keys.secret).ok());
    std::filesystem::rename(newer + ".sig", made.signature);
    const Status status = made.refusal({made.keys.known});
    CHECK(status.error_number == EPERM);
    CHECK(says(status.message, {"signed another manifest", "is another bundle's"}));
    // A sound bundle that somebody made of other kernels, with the old signature.
    Forgery forgery;
    forgery.add(kKey, "forged");
    write_text(made.bundle, forgery.text());
    CHECK(says(made.refusal({made.keys.known}).message, {"signed another manifest"}));
}

TEST_CASE("a signature that cannot be written leaves no bundle", "[signing]") {
    const Keys keys;
    std::size_t operations = 0;
    for (std::size_t n = 0; n == 0 || n < operations; ++n) {
        const TemporaryDirectory temporary;
        FaultyFileSystem files;
        const Store store({.directory = temporary / "made", .file_system = &files});
        REQUIRE(store.publish(kKey, kVersion, entry_of("one")).ok());
        const std::string bundle = temporary / "all.bundle";
        files.reset_counts();
        if (n > 0) files.fail_once_at(n - 1, ENOSPC);
        const auto report = store.export_bundle(bundle, everything, {}, &keys.secret);
        files.heal();
        if (n == 0) {
            REQUIRE(report.ok());
            operations = files.count_all();
        }
        if (report && report->entries > 0) CHECK(std::filesystem::exists(bundle + ".sig"));
        // The signature comes first, and the bundle may then fail; a bundle alone would be for nobody.
        if (std::filesystem::exists(bundle)) CHECK(std::filesystem::exists(bundle + ".sig"));
    }
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "made"});
    REQUIRE(store.publish(kKey, kVersion, entry_of("one")).ok());
    std::filesystem::create_directory(temporary / "all.bundle.sig");
    const Status status =
        store.export_bundle(temporary / "all.bundle", everything, {}, &keys.secret).status();
    CHECK(status.error_number == EEXIST);
    CHECK(status.path == temporary / "all.bundle.sig");
    CHECK_FALSE(std::filesystem::exists(temporary / "all.bundle"));
}

TEST_CASE("a layer is a bundle that a trusted key signed, or passed over with a warning", "[signing]") {
    const Signed made;
    const auto open = [&](Warnings& warnings, std::vector<PublicKey> trusted) {
        return std::make_unique<const Store>(Options{.directory = made.temporary / "own",
                                                     .read_only_layers = {made.bundle},
                                                     .trusted_keys = std::move(trusted),
                                                     .warn = warnings.callback()});
    };
    {
        Warnings warnings;
        const auto store = open(warnings, {made.others.known, made.keys.known});
        CHECK(load_newest(*store, kKey) == entry_of("one"));
        CHECK(store->verify().bad.empty());
        CHECK(warnings.count() == 0);
    }
    const auto check_passed_over = [&](std::vector<PublicKey> trusted, std::string_view because) {
        Warnings warnings;
        const auto store = open(warnings, std::move(trusted));
        CHECK(store->candidates(kKey).empty());
        CHECK(store->candidates(kOtherKey).empty());
        REQUIRE(warnings.count() == 1);
        CHECK(says(warnings.messages().front(), {"a read-only layer is passed over", because, made.bundle}));
        CHECK(store->list().unreadable.size() == 1);
        CHECK(says(store->stat().layers.front().not_usable_because, {because}));
    };
    check_passed_over({made.others.known}, "is trusted");
    std::filesystem::remove(made.signature);
    check_passed_over({made.keys.known}, "it is not signed");
    Warnings warnings;
    CHECK(load_newest(*open(warnings, {}), kKey) == entry_of("one"));
}

TEST_CASE("a hit in a signed layer is held against the signed manifest", "[signing]") {
    // An entry of the same length, whole by its own checksum, put in the place of the one that was signed.
    const Signed made("one");
    const std::string forged = text_of(encode_entry(kKey, kVersion, entry_of("two")));
    Warnings warnings;
    const Store store({.directory = made.temporary / "own",
                       .read_only_layers = {made.bundle},
                       .trusted_keys = {made.keys.known},
                       .warn = warnings.callback()});
    const Store careless({.directory = made.temporary / "own", .read_only_layers = {made.bundle}});
    const Bundle bundle = Bundle::open(posix_file_system(), made.bundle).value();
    const BundledEntry* const entry = bundle.find({kKey, kVersion});
    REQUIRE(entry != nullptr);
    REQUIRE(entry->bytes == forged.size());
    CHECK(load_newest(store, kKey) == entry_of("one"));
    for (std::size_t i = 0; i < forged.size(); ++i) overwrite(made.bundle, entry->offset + i, forged[i]);
    CHECK(load_newest(careless, kKey) == entry_of("two"));
    const auto candidates = store.candidates(kKey);
    REQUIRE(candidates.size() == 1);
    const Result<Entry> loaded = store.load(candidates.front());
    REQUIRE_FALSE(loaded.ok());
    CHECK(loaded.status().error_number == EBADMSG);
    REQUIRE(warnings.count() == 1);
    CHECK(says(warnings.messages().front(), {"read-only layer", "not the one of the signed manifest"}));
    CHECK(load_newest(store, kOtherKey) == entry_of("another"));
    const VerifyReport verified = store.verify();
    CHECK(verified.bad.size() >= 1);
    // Nor does it get into a bundle that is made of it.
    const ExportReport report = store.export_bundle(made.temporary / "again.bundle", everything).value();
    CHECK(report.entries == 1);
    CHECK(report.bad.size() + report.unreadable.size() == 1);
}

TEST_CASE("with trusted keys a signature counts, and not who may write to a directory", "[signing]") {
    const Signed made;
    const std::string open_to_all = made.temporary / "made";
    for (const Digest& key : {kKey, kOtherKey})
        ::chmod((open_to_all + "/" + layout::entry_path({key, kVersion})).c_str(), 0666);
    ::chmod(made.bundle.c_str(), 0666);
    const auto loads = [&](const std::string& layer, std::vector<PublicKey> keys, Warnings& warnings) {
        const Store store({.read_only_layers = {layer},
                           .trust = Trust::all,
                           .trusted_keys = std::move(keys),
                           .warn = warnings.callback()});
        return store.load(store.candidates(kKey).front()).ok();
    };
    Warnings none, refused;
    CHECK(loads(open_to_all, {}, none));
    CHECK(loads(made.bundle, {made.keys.known}, none));
    CHECK(none.count() == 0);
    CHECK_FALSE(loads(open_to_all, {made.keys.known}, refused));
    REQUIRE(refused.count() == 1);
    CHECK(says(refused.messages().front(),
               {"not signed by a trusted key", "everyone may write to it", "a signed bundle", open_to_all}));
}

}  // namespace attnsmith::cache
