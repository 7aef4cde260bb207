#include "cache/store/store.hpp"

#include <sys/stat.h>

#include <cerrno>

#include "cache/entries/layout.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using testing::count_files;
using testing::entry_of;
using testing::FaultyFileSystem;
using testing::kKey;
using testing::kOtherKey;
using testing::kVersion;
using testing::load_newest;
using testing::Operation;
using testing::read_text;
using testing::TemporaryDirectory;
using testing::Warnings;
using testing::write_text;

namespace {

struct StoreTest {
    TemporaryDirectory temporary;
    std::string directory = temporary / "cache";
    Warnings warnings;
    FaultyFileSystem files;
    Store store{{.directory = directory, .file_system = &files, .warn = warnings.callback()}};

    std::string entry_file(const Digest& key = kKey, const Version& version = kVersion) const {
        return directory + "/" + layout::entry_path({key, version});
    }
};

mode_t mode_of(const std::string& path) {
    struct ::stat found {};
    return ::stat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
}

void flip_byte(const std::string& path, std::size_t at) {
    std::string bytes = read_text(path);
    bytes.at(at) ^= 1;
    write_text(path, bytes);
}

}  // namespace

TEST_CASE("Store: what was published is loaded, by this process's stores and others", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
    const Store another{{.directory = test.directory}};
    CHECK(load_newest(another, kKey) == entry_of("payload"));
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: a key that was never published has no candidates", "[cache][store]") {
    StoreTest test;
    CHECK(test.store.candidates(kKey).empty());
    REQUIRE(test.store.publish(kOtherKey, kVersion, entry_of("other")).ok());
    CHECK(test.store.candidates(kKey).empty());
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: looking makes no directory, publishing makes it private", "[cache][store]") {
    StoreTest test;
    static_cast<void>(test.store.candidates(kKey));
    static_cast<void>(test.store.list());
    static_cast<void>(test.store.stat());
    static_cast<void>(test.store.verify());
    static_cast<void>(test.store.clear());
    CHECK_FALSE(std::filesystem::exists(test.directory));
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(mode_of(test.directory) == 0700);
    CHECK(mode_of(test.directory + "/01") == 0700);
    CHECK(mode_of(test.directory + "/staging") == 0700);
    CHECK(mode_of(test.entry_file()) == 0600);
}

TEST_CASE("Store: what is made inside takes the permissions of a directory that was there",
          "[cache][store]") {
    StoreTest test;
    const mode_t old_mask = ::umask(0022);
    std::filesystem::create_directory(test.directory);
    ::chmod(test.directory.c_str(), 0755);
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(mode_of(test.directory + "/01") == 0755);
    CHECK(mode_of(test.entry_file()) == 0644);
    ::umask(old_mask);
}

TEST_CASE("Store: all that is written has the modes that its directory gives, whatever the umask",
          "[cache][store]") {
    struct Case {
        mode_t directory, made_directory, made_file;
    };
    for (const Case& one :
         {Case{0, 0700, 0600}, Case{0700, 0700, 0600}, Case{0755, 0755, 0644}, Case{0750, 0750, 0640}}) {
        for (const mode_t mask : {0u, 022u, 077u}) {
            INFO(one.directory << " beside a umask of " << mask);
            const TemporaryDirectory temporary;
            const std::string directory = temporary / "cache";
            if (one.directory != 0) {
                std::filesystem::create_directory(directory);
                REQUIRE(::chmod(directory.c_str(), one.directory) == 0);
            }
            const mode_t old_mask = ::umask(mask);
            {
                const Store store({.directory = directory});
                CHECK(store.publish(kKey, kVersion, entry_of("payload")).ok());
                CHECK(store.publish(kOtherKey, kVersion, entry_of("other")).ok());
                CHECK(store.lock(kKey).held());
                flip_byte(store.candidates(kKey).front().path, 70);
                CHECK_FALSE(store.load(store.candidates(kKey).front()));
                CHECK_FALSE(store.gc(std::nullopt).busy);
                CHECK(store.export_bundle(temporary / "all.bundle", [](const ListedEntry&) { return true; })
                          .ok());
                CHECK(store.clear().status.ok());
                CHECK(store.import_bundle(temporary / "all.bundle").ok());
                CHECK(store.publish(kKey, kVersion, entry_of("payload")).ok());
                flip_byte(store.candidates(kKey).front().path, 70);
                CHECK_FALSE(store.load(store.candidates(kKey).front()));
                CHECK(store.lock(kKey).held());
            }  // writes the counters
            ::umask(old_mask);
            CHECK(mode_of(directory) == one.made_directory);
            CHECK(mode_of(temporary / "all.bundle") == (0666 & ~mask));
            std::size_t files = 0;
            for (const auto& found : std::filesystem::recursive_directory_iterator(directory)) {
                INFO(found.path());
                CHECK(mode_of(found.path()) == (found.is_directory() ? one.made_directory : one.made_file));
                files += found.is_directory() ? 0 : 1;
            }
            CHECK(files == 4);  // an entry, one in quarantine, a lock and counters
        }
    }
}

TEST_CASE("Store: candidates come newest version first, by number", "[cache][store]") {
    StoreTest test;
    const std::vector<Version> versions = {{13, 0, 88}, {9, 9, 999}, {13, 0, 100}, {12, 9, 41}, {13, 1, 0}};
    for (const Version& version : versions) {
        REQUIRE(test.store.publish(kKey, version, entry_of(version.to_string())).ok());
    }
    REQUIRE(test.store.publish(kOtherKey, {99, 0, 0}, entry_of("other")).ok());

    std::vector<std::string> found;
    for (const Candidate& candidate : test.store.candidates(kKey)) {
        CHECK(candidate.key == kKey);
        CHECK(candidate.layer == kWritableLayer);
        CHECK(candidate.path == test.entry_file(kKey, candidate.version));
        CHECK(test.store.load(candidate).value() == entry_of(candidate.version.to_string()));
        found.push_back(candidate.version.to_string());
    }
    CHECK(found == std::vector<std::string>{"13.1.0", "13.0.100", "13.0.88", "12.9.41", "9.9.999"});
}

TEST_CASE("Store: publishing again replaces the entry", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("first")).ok());
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("second")).ok());
    CHECK(test.store.candidates(kKey).size() == 1);
    CHECK(load_newest(test.store, kKey) == entry_of("second"));
}

TEST_CASE("Store: an empty payload and empty metadata object are kept", "[cache][store]") {
    StoreTest test;
    const Entry entry{.metadata = "{}", .payload = {}};
    REQUIRE(test.store.publish(kKey, kVersion, entry).ok());
    CHECK(load_newest(test.store, kKey) == entry);
}

TEST_CASE("Store: what cannot be an entry is the caller's fault and writes nothing", "[cache][store]") {
    StoreTest test;
    for (const char* metadata :
         {"", "[]", "1", "null", "{", "{} x", "{\"a\":}", "\"{}\"", "{\"a\":\"\xff\"}"}) {
        INFO(metadata);
        CHECK(test.store.publish(kKey, kVersion, {.metadata = metadata, .payload = {}}).fatal());
    }
    for (const Version& version : {Version{-1, 0, 0}, Version{1, -1, 0}, Version{1, 0, -1}}) {
        CHECK(test.store.publish(kKey, version, entry_of("payload")).fatal());
    }
    CHECK_FALSE(std::filesystem::exists(test.directory));
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: a hit takes no lock and neither writes nor syncs", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    static_cast<void>(test.store.stat());  // writes down what was counted, which else may come in between
    test.files.reset_counts();
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
    CHECK(test.files.count(Operation::list_names) == 1);
    CHECK(test.files.count(Operation::open_for_reading) == 1);
    CHECK(test.files.count(Operation::file_stat) == 1);
    CHECK(test.files.count(Operation::file_read) == 1);
    CHECK(test.files.count(Operation::stat) == 1);  // whose directory it is
    CHECK(test.files.count_all() == 5);
}

TEST_CASE("Store: a publish syncs the file before it is seen and the directory after", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kOtherKey, kVersion, entry_of("makes the shard")).ok());
    std::vector<Operation> order;
    test.files.fault = [&](Operation operation) {
        order.push_back(operation);
        return 0;
    };
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    test.files.heal();
    CHECK(order == std::vector<Operation>{Operation::stat, Operation::stat, Operation::create,
                                          Operation::file_write, Operation::file_sync, Operation::file_close,
                                          Operation::rename, Operation::sync_directory,
                                          Operation::list_files});
}

TEST_CASE("Store: a broken entry is a miss, goes to quarantine and is told", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    flip_byte(test.entry_file(), 70);
    const auto candidates = test.store.candidates(kKey);
    REQUIRE(candidates.size() == 1);

    const auto loaded = test.store.load(candidates[0]);
    CHECK(loaded.status().recoverable());
    CHECK(loaded.status().error_number == EBADMSG);
    CHECK(test.store.candidates(kKey).empty());
    CHECK(count_files(test.directory + "/quarantine") == 1);
    CHECK(test.store.stat().quarantined == 1);
    REQUIRE(test.warnings.count() == 1);
    CHECK(test.warnings.messages()[0].find(test.entry_file()) != std::string::npos);

    CHECK(test.store.load(candidates[0]).status().error_number == ENOENT);
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("rebuilt")).ok());
    CHECK(load_newest(test.store, kKey) == entry_of("rebuilt"));
}

TEST_CASE("Store: an older version serves when the newest is broken", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, {13, 0, 0}, entry_of("old")).ok());
    REQUIRE(test.store.publish(kKey, {13, 1, 0}, entry_of("new")).ok());
    write_text(test.entry_file(kKey, {13, 1, 0}), "");
    const auto candidates = test.store.candidates(kKey);
    REQUIRE(candidates.size() == 2);
    CHECK_FALSE(test.store.load(candidates[0]));
    CHECK(test.store.load(candidates[1]).value() == entry_of("old"));
}

TEST_CASE("Store: an entry under another's name is never served", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::filesystem::copy_file(test.entry_file(), test.entry_file(kOtherKey));
    std::filesystem::copy_file(test.entry_file(), test.entry_file(kKey, {99, 0, 0}));
    CHECK(test.store.load(test.store.candidates(kOtherKey).front()).status().error_number == EBADMSG);
    CHECK(test.store.load(test.store.candidates(kKey).front()).status().error_number == EBADMSG);
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
}

TEST_CASE("Store: an entry of another format version is passed over and left in place", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::string bytes = read_text(test.entry_file());
    bytes[8] = 2;
    const std::size_t covered = bytes.size() - Digest::kBytes;
    const std::string hex = digest_of(std::string_view(bytes).substr(0, covered)).hex();
    for (std::size_t i = 0; i < Digest::kBytes; ++i) {
        bytes[covered + i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    }
    write_text(test.entry_file(), bytes);

    CHECK(test.store.load(test.store.candidates(kKey).front()).status().error_number == EPROTONOSUPPORT);
    CHECK(read_text(test.entry_file()) == bytes);
    const VerifyReport report = test.store.verify();
    CHECK(report.skipped == 1);
    CHECK(report.bad.empty());
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: a good entry that replaced a broken one is not quarantined for it", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    const std::string good = read_text(test.entry_file());
    flip_byte(test.entry_file(), 70);
    const Candidate candidate = test.store.candidates(kKey).front();
    // Another process publishes between our read and our quarantine, whose first step is a stat; or between
    // that and its rename.
    const Operation step = GENERATE(Operation::stat, Operation::rename);
    test.files.fault = [&](Operation operation) {
        if (operation == step) {
            write_text(test.directory + "/replacement", good);
            std::filesystem::rename(test.directory + "/replacement", test.entry_file());
        }
        return 0;
    };
    CHECK_FALSE(test.store.load(candidate));
    test.files.heal();
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
    CHECK(count_files(test.directory + "/quarantine") == 0);
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: an entry that went to quarantine by mistake does not replace a newer one",
          "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("older")).ok());
    const std::string older = read_text(test.entry_file());
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("newer")).ok());
    const std::string newer = read_text(test.entry_file());
    flip_byte(test.entry_file(), 70);
    const Candidate candidate = test.store.candidates(kKey).front();
    const auto publish_elsewhere = [&](const std::string& bytes) {
        write_text(test.directory + "/replacement", bytes);
        std::filesystem::rename(test.directory + "/replacement", test.entry_file());
    };
    test.files.fault = [&](Operation operation) {
        if (operation == Operation::rename) publish_elsewhere(older);
        if (operation == Operation::rename_if_free) publish_elsewhere(newer);
        return 0;
    };
    CHECK_FALSE(test.store.load(candidate));
    test.files.heal();
    CHECK(load_newest(test.store, kKey) == entry_of("newer"));
}

TEST_CASE("Store: a publish whose staging file is taken away starts over", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kOtherKey, kVersion, entry_of("makes the shard")).ok());
    int renames = 0;
    test.files.fault = [&](Operation operation) {
        if (operation == Operation::rename && renames++ == 0) {
            std::filesystem::remove_all(test.directory + "/staging");
        }
        return 0;
    };
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    test.files.heal();
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: a directory, a FIFO or a link in an entry's place is a miss", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::filesystem::rename(test.entry_file(), test.temporary / "elsewhere");
    SECTION("directory") { std::filesystem::create_directory(test.entry_file()); }
    SECTION("FIFO") { REQUIRE(::mkfifo(test.entry_file().c_str(), 0600) == 0); }
    SECTION("link to a good entry") {
        std::filesystem::create_symlink(test.temporary / "elsewhere", test.entry_file());
    }
    REQUIRE(test.store.candidates(kKey).size() == 1);
    const auto loaded = test.store.load(test.store.candidates(kKey).front());
    CHECK(loaded.status().recoverable());
    CHECK(test.store.stat().entries == 0);
    CHECK(test.store.list().entries.empty());
}

TEST_CASE("Store: publishing replaces a link in an entry's place, not what it points to", "[cache][store]") {
    StoreTest test;
    write_text(test.temporary / "victim", "untouched");
    std::filesystem::create_directories(test.directory + "/01");
    std::filesystem::create_symlink(test.temporary / "victim", test.entry_file());
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
    CHECK(read_text(test.temporary / "victim") == "untouched");
}

TEST_CASE("Store: a shard that is a link is neither read nor written through", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::filesystem::rename(test.directory + "/01", test.temporary / "outside");
    std::filesystem::create_symlink(test.temporary / "outside", test.directory + "/01");
    CHECK(test.store.candidates(kKey).empty());
    CHECK(test.store.publish(kOtherKey, kVersion, entry_of("payload")).recoverable());
    CHECK(count_files(test.temporary / "outside") == 1);
    CHECK(count_files(test.directory + "/staging") == 0);
    CHECK(test.store.verify().bad.size() == 1);
}

TEST_CASE("Store: layers are searched and never written to", "[cache][store]") {
    TemporaryDirectory temporary;
    REQUIRE(Store({.directory = temporary / "one"}).publish(kKey, {13, 0, 0}, entry_of("one")).ok());
    REQUIRE(Store({.directory = temporary / "two"}).publish(kKey, {13, 2, 0}, entry_of("two")).ok());
    REQUIRE(Store({.directory = temporary / "two"}).publish(kKey, {13, 0, 0}, entry_of("same version")).ok());
    const std::size_t files_before = count_files(temporary / "one") + count_files(temporary / "two");
    const Store store({.directory = temporary / "own",
                       .read_only_layers = {temporary / "one", temporary / "missing", temporary / "two"}});
    REQUIRE(store.publish(kKey, {13, 1, 0}, entry_of("own")).ok());

    std::vector<std::string> payloads;
    std::vector<std::size_t> layers;
    for (const Candidate& candidate : store.candidates(kKey)) {
        const Entry entry = store.load(candidate).value();
        payloads.emplace_back(reinterpret_cast<const char*>(entry.payload.data()), entry.payload.size());
        layers.push_back(candidate.layer);
    }
    CHECK(payloads == std::vector<std::string>{"two", "own", "one", "same version"});
    CHECK(layers == std::vector<std::size_t>{3, 0, 1, 3});
    static_cast<void>(store.clear());
    CHECK(count_files(temporary / "one") + count_files(temporary / "two") == files_before);
}

TEST_CASE("Store: a missing read-only layer is told once, when the store is made", "[cache][store]") {
    const TemporaryDirectory temporary;
    Warnings warnings;
    const std::string missing = temporary / "mistyped";
    const Store store(
        {.directory = temporary / "own", .read_only_layers = {missing}, .warn = warnings.callback()});
    REQUIRE(warnings.count() == 1);
    CHECK_THAT(warnings.messages().front(), Catch::Contains(missing));
    CHECK(store.candidates(kKey).empty());
    CHECK(warnings.count() == 1);
    REQUIRE(store.passed_over().size() == 1);
    CHECK(store.passed_over().front().path == missing);
    // It may be mounted later.
    REQUIRE(Store({.directory = missing}).publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(load_newest(store, kKey) == entry_of("payload"));
    CHECK(store.passed_over().empty());
}

TEST_CASE("Store: layers serve where there is no directory of one's own", "[cache][store]") {
    TemporaryDirectory temporary;
    REQUIRE(Store({.directory = temporary / "layer"}).publish(kKey, kVersion, entry_of("payload")).ok());
    const Store store({.directory = "", .read_only_layers = {temporary / "layer"}});
    CHECK(load_newest(store, kKey) == entry_of("payload"));
}

TEST_CASE("Store: broken entries in a read-only layer are passed over, left there and told once",
          "[cache][store]") {
    StoreTest test;
    for (const Digest& key : {kKey, kOtherKey}) {
        REQUIRE(test.store.publish(key, kVersion, entry_of("payload")).ok());
        flip_byte(test.entry_file(key), 70);
    }
    const Store store({.directory = test.temporary / "own",
                       .read_only_layers = {test.directory},
                       .warn = test.warnings.callback()});
    for (const Digest& key : {kKey, kOtherKey, kKey}) {
        CHECK(store.load(store.candidates(key).front()).status().error_number == EBADMSG);
    }
    CHECK(test.warnings.count() == 1);
    CHECK(std::filesystem::exists(test.entry_file()));
    CHECK_FALSE(std::filesystem::exists(test.temporary / "own"));
}

TEST_CASE("Store: without a directory everything is a miss and one warning", "[cache][store]") {
    Warnings warnings;
    const Store store({.directory = "", .warn = warnings.callback()});
    CHECK(store.candidates(kKey).empty());
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).recoverable());
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).recoverable());
    CHECK(store.lock(kKey).state() == LockState::unavailable);
    CHECK(warnings.count() == 1);
    CHECK(store.list().entries.empty());
    CHECK_FALSE(store.stat().writable);
    CHECK_FALSE(store.stat().not_writable_because.empty());
    CHECK(store.verify().checked == 0);
    CHECK(store.clear().status.ok());
}

TEST_CASE("Store: a copy of a cache at another path is all hits", "[cache][store]") {
    StoreTest test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::filesystem::copy(test.directory, test.temporary / "copy", std::filesystem::copy_options::recursive);
    CHECK(load_newest(Store({.directory = test.temporary / "copy/"}), kKey) == entry_of("payload"));
}

TEST_CASE("Store: locks exclude by key", "[cache][store]") {
    StoreTest test;
    const Store impatient({.directory = test.directory, .lock_wait = std::chrono::milliseconds(5)});
    const Lock lock = test.store.lock(kKey);
    CHECK(lock.state() == LockState::acquired);
    CHECK(impatient.lock(kKey).state() == LockState::timed_out);
    CHECK(impatient.lock(kOtherKey).state() == LockState::acquired);
    CHECK(test.warnings.count() == 0);
}

}  // namespace attnsmith::cache
