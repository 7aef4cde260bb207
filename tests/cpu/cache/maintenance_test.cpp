// list, stat, verify and clear.

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "cache/entries/layout.hpp"
#include "cache/store/store.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;
using testing::count_files;
using testing::entry_of;
using testing::FaultyFileSystem;
using testing::kKey;
using testing::kOtherKey;
using testing::kVersion;
using testing::load_newest;
using testing::Operation;
using testing::TemporaryDirectory;
using testing::write_text;

namespace {

const Digest kFarKey(0xff00000000000000, 1);  // in another shard than kKey

struct Maintained {
    TemporaryDirectory temporary;
    std::string directory = temporary / "cache";
    FaultyFileSystem files;
    Store store{{.directory = directory, .read_only_layers = {temporary / "layer"}, .file_system = &files}};
    Store layer{{.directory = temporary / "layer"}};

    std::string entry_file(const Digest& key, const Version& version = kVersion) const {
        return directory + "/" + layout::entry_path({key, version});
    }
    std::string leave_staging_file(std::uint64_t token, std::chrono::minutes age) const {
        const std::string path = directory + "/staging/" + layout::staging_name(kKey, token);
        write_text(path, "left by a killed process");
        std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - age);
        return path;
    }
};

std::uint64_t size_of(const std::string& path) { return std::filesystem::file_size(path); }

}  // namespace

TEST_CASE("Store: all maintenance works on a directory that does not exist", "[cache][maintenance]") {
    const Maintained test;
    CHECK(test.store.list().entries.empty());
    CHECK(test.store.verify().checked == 0);
    CHECK(test.store.verify().bad.empty());
    const ClearReport cleared = test.store.clear();
    CHECK(cleared.status.ok());
    CHECK(cleared.entries + cleared.locks + cleared.staging + cleared.quarantined == 0);
    const Statistics statistics = test.store.stat();
    CHECK(statistics.directory == test.directory);
    CHECK(statistics.writable);
    CHECK(statistics.entries == 0);
    CHECK_FALSE(std::filesystem::exists(test.directory));
}

TEST_CASE("Store: list shows every entry of every layer, in order, with its metadata",
          "[cache][maintenance]") {
    const Maintained test;
    const auto before = std::chrono::system_clock::now() - 1min;
    REQUIRE(test.store.publish(kFarKey, kVersion, entry_of("far")).ok());
    REQUIRE(test.store.publish(kKey, {13, 0, 0}, entry_of("old")).ok());
    REQUIRE(test.store.publish(kKey, {13, 1, 0}, {.metadata = R"({"tile":128})", .payload = {}}).ok());
    REQUIRE(test.layer.publish(kKey, {13, 0, 0}, entry_of("layer")).ok());

    const auto listed = test.store.list().entries;
    REQUIRE(listed.size() == 4);
    CHECK(listed[0].key == kKey);
    CHECK(listed[0].version == Version{13, 1, 0});
    CHECK(listed[0].metadata == R"({"tile":128})");
    CHECK(listed[1].version == Version{13, 0, 0});
    CHECK(listed[1].layer == kWritableLayer);
    CHECK(listed[1].metadata == entry_of("").metadata);
    CHECK(listed[1].path == test.entry_file(kKey, {13, 0, 0}));
    CHECK(listed[1].bytes == size_of(listed[1].path));
    CHECK(listed[1].modified > before);
    CHECK(listed[2].layer == 1);
    CHECK(listed[3].key == kFarKey);
}

TEST_CASE("Store: list survives entries that are broken", "[cache][maintenance]") {
    const Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::string lying = testing::read_text(test.entry_file(kKey));
    lying[50] = 1;  // says 64 KiB more of metadata than there is
    write_text(test.entry_file(kKey), lying);
    write_text(test.entry_file(kOtherKey), "short");
    const auto listed = test.store.list().entries;
    REQUIRE(listed.size() == 2);
    CHECK(listed[0].metadata.empty());
    CHECK(listed[1].metadata.empty());
}

TEST_CASE("Store: list and stat tell what they could not read", "[cache][maintenance]") {
    Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    REQUIRE(test.store.publish(kFarKey, kVersion, entry_of("far")).ok());
    REQUIRE(test.layer.publish(kKey, kVersion, entry_of("layer")).ok());
    CHECK(test.store.list().unreadable.empty());
    CHECK(test.store.stat().unreadable.empty());

    test.files.fail_always(Operation::list_names, EACCES);  // the directories themselves
    CHECK(test.store.list().entries.empty());
    REQUIRE(test.store.list().unreadable.size() == 2);
    CHECK(test.store.list().unreadable[0].path == test.directory);
    CHECK(test.store.list().unreadable[0].message.find("Permission denied") != std::string::npos);
    Statistics statistics = test.store.stat();
    REQUIRE(statistics.unreadable.size() == 1);
    CHECK(statistics.unreadable[0].path == test.directory);
    CHECK(statistics.layers[0].unreadable.size() == 1);
    CHECK(statistics.layers[0].not_usable_because.find("Permission denied") != std::string::npos);

    test.files.heal();  // one shard
    std::filesystem::remove_all(test.directory + "/01");
    write_text(test.directory + "/01", "no directory");
    const Listing listing = test.store.list();
    CHECK(listing.entries.size() == 2);
    REQUIRE(listing.unreadable.size() == 1);
    CHECK(listing.unreadable[0].path == test.directory + "/01");
    statistics = test.store.stat();
    CHECK(statistics.entries == 1);
    CHECK(statistics.unreadable.size() == 1);
    CHECK(statistics.layers[0].unreadable.empty());

    test.files.fail_always(Operation::open_for_reading, EACCES);  // the entries
    CHECK(test.store.list().entries.empty());
    CHECK(test.store.list().unreadable.size() == 3);
    const auto exported =
        test.store.export_bundle(test.temporary / "bundle", [](const ListedEntry&) { return true; });
    REQUIRE(exported);
    CHECK(exported->unreadable.size() == 3);
}

TEST_CASE("Store: stat says why a layer is not usable", "[cache][maintenance]") {
    const TemporaryDirectory temporary;
    write_text(temporary / "text", "no bundle");
    REQUIRE(::mkfifo((temporary / "fifo").c_str(), 0600) == 0);
    std::filesystem::create_directory(temporary / "empty");
    const Store store({.directory = temporary / "cache",
                       .read_only_layers = {temporary / "typo", temporary / "text", temporary / "fifo",
                                            temporary / "empty"}});
    const auto layers = store.stat().layers;
    CHECK(layers[0].not_usable_because.find("No such file") != std::string::npos);
    CHECK(layers[0].unreadable.empty());  // it may appear later
    CHECK(layers[1].not_usable_because.find("not a sound bundle") != std::string::npos);
    CHECK(layers[2].not_usable_because.find("Not a directory") != std::string::npos);
    CHECK(layers[3].not_usable_because.empty());
    CHECK(store.verify().unusable == 2);
}

TEST_CASE("Store: stat counts entries, bytes, quarantine and staging, layers apart", "[cache][maintenance]") {
    const Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    REQUIRE(test.store.publish(kFarKey, kVersion, entry_of("far")).ok());
    REQUIRE(test.layer.publish(kKey, kVersion, entry_of("layer")).ok());
    write_text(test.entry_file(kOtherKey), "broken");
    CHECK_FALSE(test.store.load(test.store.candidates(kOtherKey).front()));
    static_cast<void>(test.leave_staging_file(1, 0min));

    const Statistics statistics = test.store.stat();
    CHECK(statistics.entries == 2);
    CHECK(statistics.bytes == size_of(test.entry_file(kKey)) + size_of(test.entry_file(kFarKey)));
    CHECK(statistics.quarantined == 1);
    CHECK(statistics.staging == 1);
    CHECK(statistics.writable);
    CHECK(statistics.not_writable_because.empty());
    REQUIRE(statistics.layers.size() == 1);
    CHECK(statistics.layers[0].entries == 1);
    CHECK(statistics.layers[0].directory == test.temporary / "layer");
}

TEST_CASE("Store: verify finds a flip of any byte and quarantines the entry", "[cache][maintenance]") {
    const Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    const std::string good = testing::read_text(test.entry_file(kKey));
    std::size_t found = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
        std::string bytes = good;
        bytes[at] ^= 0x40;
        write_text(test.entry_file(kKey), bytes);
        const VerifyReport report = test.store.verify();
        const bool right = report.checked == 1 && report.bad.size() == 1 && !report.bad[0].reason.empty() &&
                           report.bad[0].action == "quarantined" &&
                           report.bad[0].path == test.entry_file(kKey);
        found += right ? 1 : 0;
    }
    CHECK(found == good.size());
    CHECK(count_files(test.directory + "/quarantine") == good.size());
    CHECK(test.store.verify().bad.empty());
}

TEST_CASE("Store: verify leaves the good and what is in layers", "[cache][maintenance]") {
    const Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    const std::string broken = test.temporary / "layer/" + layout::entry_path({kKey, kVersion});
    write_text(broken, "broken");
    const VerifyReport report = test.store.verify();
    CHECK(report.checked == 2);
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].path == broken);
    CHECK(report.bad[0].action.find("left in place") == 0);
    CHECK(testing::read_text(broken) == "broken");
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
}

TEST_CASE("Store: verify quarantines links and other things named as entries", "[cache][maintenance]") {
    const Maintained test;
    write_text(test.temporary / "outside", "outside");
    std::filesystem::create_directories(test.directory + "/01");
    std::filesystem::create_symlink(test.temporary / "outside", test.entry_file(kKey));
    REQUIRE(::mkfifo(test.entry_file(kOtherKey).c_str(), 0600) == 0);
    const VerifyReport report = test.store.verify();
    CHECK(report.checked == 2);
    CHECK(report.bad.size() == 2);
    CHECK(test.store.candidates(kKey).empty());
    CHECK(test.store.candidates(kOtherKey).empty());
    CHECK(testing::read_text(test.temporary / "outside") == "outside");
}

TEST_CASE("Store: verify leaves a directory named as an entry in place", "[cache][maintenance]") {
    const Maintained test;
    std::filesystem::create_directories(test.entry_file(kKey));
    const VerifyReport report = test.store.verify();
    CHECK(report.checked == 1);
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].action == "left in place: a directory");
    CHECK(std::filesystem::is_directory(test.entry_file(kKey)));
    CHECK(test.store.clear().status.to_string() == "ok");
}

TEST_CASE("Store: verify takes an entry with a stale handle for gone", "[cache][maintenance]") {
    Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    test.files.fail_always(Operation::open_for_reading, ESTALE);
    const VerifyReport report = test.store.verify();
    CHECK(report.checked == 0);
    CHECK(report.bad.empty());
}

TEST_CASE("Store: verify reports what it could not read or move", "[cache][maintenance]") {
    Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    test.files.fail_always(Operation::file_read, EIO);
    VerifyReport report = test.store.verify();
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].action == "left in place");
    CHECK(report.bad[0].reason.find("Input/output error") != std::string::npos);

    write_text(test.entry_file(kKey), "broken");
    test.files.fail_always(Operation::rename, EROFS);
    report = test.store.verify();
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].action.find("Read-only file system") != std::string::npos);
    CHECK(std::filesystem::exists(test.entry_file(kKey)));

    test.files.fail_always(Operation::list_files, EACCES);
    CHECK(test.store.verify().unusable == 2);  // the shard, and the staging files
}

TEST_CASE("Store: verify and clear remove staging files of over an hour, and only those",
          "[cache][maintenance]") {
    const Maintained test;
    const auto leave_both = [&] {
        static_cast<void>(test.leave_staging_file(1, 61min));
        return test.leave_staging_file(2, 55min);
    };
    const std::string live = leave_both();
    CHECK(test.store.verify().stale_staging_removed == 1);
    CHECK(count_files(test.directory + "/staging") == 1);
    leave_both();
    CHECK(test.store.clear().staging == 1);
    CHECK(count_files(test.directory + "/staging") == 1);
    CHECK(std::filesystem::exists(live));
}

TEST_CASE("Store: clear empties the directory and counts what it removed", "[cache][maintenance]") {
    const Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    REQUIRE(test.store.publish(kFarKey, kVersion, entry_of("far")).ok());
    REQUIRE(test.layer.publish(kKey, kVersion, entry_of("layer")).ok());
    const std::uint64_t bytes = size_of(test.entry_file(kKey)) + size_of(test.entry_file(kFarKey)) + 6;
    write_text(test.entry_file(kOtherKey), "broken");
    CHECK_FALSE(test.store.load(test.store.candidates(kOtherKey).front()));
    CHECK(test.store.lock(kKey).held());

    const ClearReport report = test.store.clear();
    CHECK(report.status.ok());
    CHECK(report.entries == 2);
    CHECK(report.quarantined == 1);
    CHECK(report.locks == 1);
    CHECK(report.bytes == bytes);
    CHECK(count_files(test.directory) == 0);
    CHECK(test.store.candidates(kKey).size() == 1);
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("again")).ok());
    CHECK(load_newest(test.store, kKey) == entry_of("again"));
}

TEST_CASE("Store: clear touches no file that is not named as ours", "[cache][maintenance]") {
    const Maintained test;
    const std::vector<std::string> foreign = {"notes.txt", "01/notes.txt", "01/" + kKey.hex() + ".entry",
                                              "staging/notes.txt", "locks/notes.lock",
                                              "quarantine/notes.broken",
                                              // Ours by its name, but in another shard than we would put it.
                                              "ff/" + layout::entry_name({kKey, kVersion})};
    for (const std::string& name : foreign) {
        write_text(test.directory + "/" + name, "foreign");
        std::filesystem::last_write_time(test.directory + "/" + name,
                                         std::filesystem::file_time_type::clock::now() - 24h);
    }
    const ClearReport report = test.store.clear();
    CHECK(report.entries + report.staging + report.locks + report.quarantined == 0);
    CHECK(count_files(test.directory) == foreign.size());
}

TEST_CASE("Store: clear leaves a lock file that is held", "[cache][maintenance]") {
    const Maintained test;
    const Lock lock = test.store.lock(kKey);
    REQUIRE(lock.held());
    const ClearReport report = test.store.clear();
    CHECK(report.locks == 0);
    CHECK(report.locks_left == 1);
    CHECK(report.status.ok());
    const Store impatient({.directory = test.directory, .lock_wait = 5ms});
    CHECK(impatient.lock(kKey).state() == LockState::timed_out);
}

TEST_CASE("Store: clear waits for who adds to the counters, and reports who goes on",
          "[cache][maintenance]") {
    const Maintained test;
    const Path path{test.directory, layout::counters_path(0)};
    write_text(path.full(), "counters");
    std::optional<Lock> adding = acquire_lock(posix_file_system(), path, 0600, 0ns);
    REQUIRE(adding->held());
    CHECK(test.store.clear().status.path == path.full());
    CHECK(std::filesystem::exists(path.full()));

    std::thread done([&] {
        std::this_thread::sleep_for(20ms);
        adding.reset();
    });
    CHECK(test.store.clear().status.ok());
    CHECK_FALSE(std::filesystem::exists(path.full()));
    done.join();
}

TEST_CASE("Store: clear removes counters on a file system without locks", "[cache][maintenance]") {
    Maintained test;
    write_text(test.directory + "/" + layout::counters_path(0), "counters");
    test.files.fail_always(Operation::file_lock, ENOLCK);
    CHECK(test.store.clear().status.ok());
    CHECK(count_files(test.directory) == 0);
}

TEST_CASE("Store: a file that cannot be looked at is told of by everybody, and the others are seen",
          "[cache][maintenance]") {
    Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    REQUIRE(test.store.publish(kOtherKey, kVersion, entry_of("other")).ok());
    const std::string hidden = test.entry_file(kKey);
    test.files.hides = [&](const std::string& path) { return path == hidden ? EIO : 0; };

    const Listing listing = test.store.list();
    CHECK(listing.entries.size() == 1);
    REQUIRE(listing.unreadable.size() == 1);
    CHECK(listing.unreadable[0].path == hidden);
    const Statistics statistics = test.store.stat();
    CHECK(statistics.entries == 1);
    REQUIRE(statistics.unreadable.size() == 1);
    CHECK(statistics.unreadable[0].error_number == EIO);
    const VerifyReport verified = test.store.verify();
    CHECK(verified.checked == 1);
    REQUIRE(verified.bad.size() == 1);
    CHECK(verified.unusable == 1);
    CHECK(verified.bad[0].path == hidden);
    const auto exported =
        test.store.export_bundle(test.temporary / "all.bundle", [](const ListedEntry&) { return true; });
    REQUIRE(exported);
    CHECK(exported->entries == 1);
    CHECK(exported->unreadable.size() == 1);
    const EvictionReport evicted = test.store.gc(std::nullopt);
    CHECK(evicted.status.path == hidden);
    CHECK_FALSE(evicted.kept);
    const ClearReport cleared = test.store.clear();
    CHECK(cleared.entries == 1);
    CHECK(cleared.status.path == hidden);
    CHECK(std::filesystem::exists(hidden));
}

TEST_CASE("Store: quarantined and staging files that cannot be looked at are told of",
          "[cache][maintenance]") {
    Maintained test;
    const std::string staging = test.leave_staging_file(1, 70min);
    test.files.hides = [&](const std::string& path) { return path == staging ? EACCES : 0; };
    REQUIRE(test.store.stat().unreadable.size() == 1);
    CHECK(test.store.stat().unreadable[0].path == staging);
    REQUIRE(test.store.verify().bad.size() == 1);
    CHECK(test.store.verify().bad[0].path == staging);
    CHECK(test.store.clear().status.path == staging);
    CHECK(test.store.gc(std::nullopt).leftover_status.path == staging);
}

TEST_CASE("Store: verify, export and import ask whether an entry is what its key says",
          "[cache][maintenance]") {
    const TemporaryDirectory temporary;
    const auto check = [](const Digest& key, const Version& version, const Entry& entry) {
        if (version != kVersion) return std::optional<std::string>("it is another version's");
        const bool is_right = entry.metadata.find(key.hex()) != std::string::npos;
        return is_right ? std::nullopt : std::optional<std::string>("it is another key's");
    };
    const auto naming = [](const Digest& key) {
        return Entry{.metadata = "{\"key\":\"" + key.hex() + "\"}", .payload = {}};
    };
    const Store store({.directory = temporary / "cache", .check_content = check});
    const Store credulous({.directory = temporary / "cache"});
    REQUIRE(store.publish(kKey, kVersion, naming(kKey)).ok());
    REQUIRE(store.publish(kFarKey, kVersion, naming(kKey)).ok());
    const auto everything = [](const ListedEntry&) { return true; };
    const std::string forged = temporary / "forged.bundle";
    REQUIRE(credulous.export_bundle(forged, everything)->entries == 2);

    const auto exported = store.export_bundle(temporary / "all.bundle", everything);
    REQUIRE(exported);
    CHECK(exported->entries == 1);
    REQUIRE(exported->bad.size() == 1);
    CHECK(exported->bad[0].reason == "it is another key's");
    CHECK(exported->bad[0].action == "left out");

    const Store copy({.directory = temporary / "copy", .check_content = check});
    const auto imported = copy.import_bundle(forged);
    CHECK(imported.status().error_number == EBADMSG);
    CHECK_THAT(imported.status().message, Catch::Contains("it is another key's"));
    CHECK(count_files(temporary / "copy") == 0);
    // One that is there and is wrong does not count as there.
    REQUIRE(copy.publish(kKey, kVersion, naming(kFarKey)).ok());
    CHECK(copy.import_bundle(temporary / "all.bundle")->published == 1);
    CHECK(load_newest(copy, kKey) == naming(kKey));

    const VerifyReport report = store.verify();
    CHECK(report.checked == 2);
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].reason == "it is another key's");
    CHECK(report.bad[0].action == "quarantined");
    CHECK(store.candidates(kFarKey).empty());
    CHECK(credulous.verify().bad.empty());
}

TEST_CASE("Store: clear removes links and pipes in the place of counters and locks, not what they point to",
          "[cache][maintenance]") {
    const Maintained test;
    write_text(test.temporary / "target", "of somebody");
    for (const std::string& name : {layout::counters_path(3), layout::lock_path(kKey)}) {
        const std::string path = test.directory + "/" + name;
        std::filesystem::create_directories(std::filesystem::path(path).parent_path());
        std::filesystem::create_symlink(test.temporary / "target", path);
    }
    REQUIRE(::mkfifo((test.directory + "/" + layout::counters_path(4)).c_str(), 0600) == 0);
    std::filesystem::create_symlink(test.temporary / "nothing",
                                    test.directory + "/" + layout::counters_path(5));
    const ClearReport report = test.store.clear();
    CHECK(report.status.ok());
    CHECK(report.locks == 1);
    CHECK(count_files(test.directory) == 0);
    CHECK(testing::read_text(test.temporary / "target") == "of somebody");
}

TEST_CASE("Store: clear reports the first removal that failed and removes the rest", "[cache][maintenance]") {
    Maintained test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    REQUIRE(test.store.publish(kFarKey, kVersion, entry_of("far")).ok());
    std::atomic<int> removals{0};
    test.files.fault = [&](Operation operation) {
        return operation == Operation::remove && removals.fetch_add(1) == 0 ? EACCES : 0;
    };
    const ClearReport report = test.store.clear();
    test.files.heal();
    CHECK(report.entries == 1);
    CHECK(report.status.error_number == EACCES);
    CHECK(report.status.path == test.entry_file(kKey));
}

}  // namespace attnsmith::cache
