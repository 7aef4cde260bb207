// Bundles as files: export, import, and what import refuses.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "bundle_fixture.hpp"
#include "cache/bundle/bundle.hpp"
#include "faulty_file_system.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using namespace testing;

const Digest kThirdKey(0xfe00000000000000, 1);
const Version kOldVersion{9, 1, 2};

bool everything(const ListedEntry&) { return true; }

void fill(const Store& store) {
    REQUIRE(store.publish(kKey, kVersion, entry_of("one")).ok());
    REQUIRE(store.publish(kKey, kOldVersion, entry_of("one, older")).ok());
    REQUIRE(store.publish(kThirdKey, kVersion, entry_of("three")).ok());
}

std::string export_all(const Store& store, const std::string& file) {
    const auto report = store.export_bundle(file, everything);
    if (!report) throw std::runtime_error(report.status().to_string());
    return read_text(file);
}

// What import says of a file of this text; it must publish nothing where it refuses.
std::string import_of(const std::string& text) {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "forged.bundle";
    write_text(file, text);
    const Store store({.directory = temporary / "cache"});
    const auto report = store.import_bundle(file);
    if (report) return fmt::format("{} published", report->published);
    CHECK(report.status().path == file);
    CHECK(count_files(temporary / "cache") == 0);
    return report.status().message;
}

std::string refused_at(std::uint64_t offset, std::string_view reason) {
    return fmt::format("not a sound bundle (at byte {}: {})", offset, reason);
}

Forgery two_entries() {
    Forgery forgery;
    forgery.add(kKey, "first");
    forgery.add(kThirdKey, "second");
    return forgery;
}

}  // namespace

TEST_CASE("a bundle has the bytes that FORMAT.md gives") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    REQUIRE(store.publish(kThirdKey, kVersion, entry_of("second")).ok());
    REQUIRE(store.publish(kKey, kVersion, entry_of("first")).ok());
    CHECK(export_all(store, temporary / "all.bundle") == two_entries().text());
    struct ::stat info;
    REQUIRE(::stat((temporary / "all.bundle").c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0644);
    CHECK(count_files(temporary.path()) == 3);  // and nothing left beside it
}

TEST_CASE("the same entries give the same bundle, whatever their order and directory") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const std::string bundle = export_all(store, temporary / "a.bundle");

    const Store other({.directory = temporary / "elsewhere/kernels"});
    REQUIRE(other.publish(kThirdKey, kVersion, entry_of("three")).ok());
    REQUIRE(other.publish(kKey, kVersion, entry_of("one")).ok());
    REQUIRE(other.publish(kKey, kOldVersion, entry_of("one, older")).ok());
    CHECK(export_all(other, temporary / "b.bundle") == bundle);

    // Half here and half in a layer, one of them twice.
    const Store half({.directory = temporary / "half"});
    REQUIRE(half.publish(kKey, kOldVersion, entry_of("one, older")).ok());
    const Store layered({.directory = temporary / "half", .read_only_layers = {temporary / "cache"}});
    CHECK(export_all(layered, temporary / "c.bundle") == bundle);
    const Store on_bundle({.directory = temporary / "none", .read_only_layers = {temporary / "a.bundle"}});
    CHECK(export_all(on_bundle, temporary / "d.bundle") == bundle);
}

TEST_CASE("what is imported is what was exported") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const std::string bundle = export_all(store, temporary / "all.bundle");

    const Store copy({.directory = temporary / "copy"});
    const auto first = copy.import_bundle(temporary / "all.bundle");
    REQUIRE(first.ok());
    CHECK(first->entries == 3);
    CHECK(first->published == 3);
    CHECK(first->present == 0);
    CHECK(first->bytes == store.stat().bytes);
    CHECK(load_newest(copy, kKey) == entry_of("one"));
    CHECK(load_newest(copy, kThirdKey) == entry_of("three"));
    CHECK(copy.verify().bad.empty());
    CHECK(export_all(copy, temporary / "again.bundle") == bundle);

    SECTION("what is there stays") {
        const auto second = copy.import_bundle(temporary / "all.bundle");
        REQUIRE(second.ok());
        CHECK(second->published == 0);
        CHECK(second->present == 3);
        CHECK(second->bytes == 0);
    }
    SECTION("what is broken there is replaced") {
        const std::string victim = copy.candidates(kThirdKey).front().path;
        write_text(victim, "broken");
        const auto second = copy.import_bundle(temporary / "all.bundle");
        REQUIRE(second.ok());
        CHECK(second->published == 1);
        CHECK(load_newest(copy, kThirdKey) == entry_of("three"));
    }
}

TEST_CASE("an export takes what is wanted, and nothing broken or foreign") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    SECTION("a choice") {
        const auto report = store.export_bundle(temporary / "some.bundle", [](const ListedEntry& entry) {
            return entry.key == kKey && entry.version == kVersion;
        });
        REQUIRE(report.ok());
        CHECK(report->entries == 1);
        CHECK(report->bytes == read_text(temporary / "some.bundle").size());
    }
    SECTION("nothing wanted, no file") {
        const auto report =
            store.export_bundle(temporary / "no.bundle", [](const ListedEntry&) { return false; });
        REQUIRE(report.ok());
        CHECK(report->entries == 0);
        CHECK_FALSE(std::filesystem::exists(temporary / "no.bundle"));
    }
    SECTION("a broken entry") {
        const std::string victim = store.candidates(kThirdKey).front().path;
        std::string text = read_text(victim);
        text[70] ^= 1;
        write_text(victim, text);
        const auto report = store.export_bundle(temporary / "rest.bundle", everything);
        REQUIRE(report.ok());
        CHECK(report->entries == 2);
        REQUIRE(report->bad.size() == 1);
        CHECK(report->bad.front().path == victim);
        CHECK(report->bad.front().action == "left out");
    }
}

TEST_CASE("an export replaces a file and nothing else") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    SECTION("an older bundle") {
        write_text(temporary / "all.bundle", "older");
        CHECK(export_all(store, temporary / "all.bundle").size() > 5);
    }
    SECTION("a directory") {
        std::filesystem::create_directory(temporary / "all.bundle");
        CHECK(store.export_bundle(temporary / "all.bundle", everything).status().error_number == EEXIST);
    }
    SECTION("a link") {
        std::filesystem::create_symlink("elsewhere", temporary / "all.bundle");
        CHECK(store.export_bundle(temporary / "all.bundle", everything).status().error_number == EEXIST);
        CHECK(std::filesystem::is_symlink(temporary / "all.bundle"));
    }
    SECTION("a pipe") {
        REQUIRE(::mkfifo((temporary / "all.bundle").c_str(), 0600) == 0);
        CHECK(store.export_bundle(temporary / "all.bundle", everything).status().error_number == EEXIST);
        CHECK(store.import_bundle(temporary / "all.bundle").status().error_number == EINVAL);
    }
    SECTION("no name") {
        CHECK(store.export_bundle(temporary / "folder/", everything).status().error_number == EISDIR);
        CHECK(store.export_bundle(temporary / "..", everything).status().error_number == EISDIR);
    }
    SECTION("a directory that is not there") {
        CHECK(store.export_bundle(temporary / "no/all.bundle", everything).status().error_number == ENOENT);
    }
}

TEST_CASE("an export that fails at any operation leaves the file as it was and nothing beside it") {
    const TemporaryDirectory temporary;
    FaultyFileSystem files;
    const Store store({.directory = temporary / "cache", .file_system = &files});
    fill(store);
    const std::string old = export_all(store, temporary / "all.bundle");
    const std::size_t before = count_files(temporary.path());
    files.most_bytes_per_write = 100;
    files.most_bytes_per_read = 100;
    files.reset_counts();
    REQUIRE(export_all(store, temporary / "all.bundle") == old);
    const std::size_t operations = files.count_all();
    REQUIRE(operations > 30);
    for (std::size_t n = 0; n < operations; ++n) {
        files.fail_once_at(n, ENOSPC);
        const auto report = store.export_bundle(temporary / "all.bundle", everything);
        files.heal();
        // A failed read leaves entries out and says so; a listing that fails names fewer.
        if (report && report->entries == 3) CHECK(read_text(temporary / "all.bundle") == old);
        CHECK(count_files(temporary.path()) <= before);
        export_all(store, temporary / "all.bundle");
    }
}

TEST_CASE("an import that fails at any operation says so, and what it published is sound") {
    const TemporaryDirectory temporary;
    const Store source({.directory = temporary / "cache"});
    fill(source);
    export_all(source, temporary / "all.bundle");
    FaultyFileSystem files;
    std::size_t operations = 1;
    for (std::size_t n = 0; n < operations; ++n) {
        const std::string directory = temporary / fmt::format("copy-{}", n);
        const Store store({.directory = directory, .file_system = &files});
        files.reset_counts();
        files.fail_once_at(n == 0 ? 1'000'000 : n - 1, EIO);
        const auto report = store.import_bundle(temporary / "all.bundle");
        files.heal();
        if (n == 0) {
            REQUIRE(report.ok());
            operations = files.count_all() + 1;
        }
        CHECK(store.verify().bad.empty());
        if (report) CHECK(store.list().entries.size() == 3);
    }
    CHECK(operations > 40);
}

TEST_CASE("an export that is killed leaves a whole bundle under the name, or what was there") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "out/all.bundle";
    std::filesystem::create_directory(temporary / "out");
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const std::string whole = export_all(store, temporary / "whole.bundle");
    KillTimes times(5);
    int appeared = 0;
    for (int kill = 0; kill < 100; ++kill) {
        ChildProcess child([&] {
            while (store.export_bundle(file, everything)) continue;
            return 1;
        });
        times.wait();
        CHECK(child.kill() == -SIGKILL);
        if (!std::filesystem::exists(file)) {
            times.was_too_early();
        } else {
            ++appeared;
            CHECK(read_text(file) == whole);
            if (kill % 2 == 0) std::filesystem::remove(file);
        }
    }
    CHECK(appeared > 0);
    CHECK(export_all(store, file) == whole);
    // What is left beside it does not look like a bundle of that name.
    for (const auto& found : std::filesystem::directory_iterator(temporary / "out")) {
        const std::string name = found.path().filename();
        CHECK((name == "all.bundle" || name.ends_with(".partial")));
    }
}

TEST_CASE("an export beside who clears has what was still there, and is no error") {
    const TemporaryDirectory temporary;
    FaultyFileSystem files;
    const Store store({.directory = temporary / "cache", .file_system = &files});
    constexpr std::uint64_t kEntries = 8;
    for (std::uint64_t i = 0; i < kEntries; ++i) {
        REQUIRE(store.publish(Digest(i << 56, 1), kVersion, entry_of(std::string(700 * i, 'x'))).ok());
    }
    // One more is gone at each entry that is opened, from the last on.
    std::uint64_t left = kEntries;
    files.reset_counts();
    files.fault = [&](Operation operation) {
        const bool is_exporting = files.count(Operation::create) > 0;
        if (operation == Operation::open_for_reading && is_exporting && left > 0) {
            const Digest key(--left << 56, 1);
            std::filesystem::remove(temporary / ("cache/" + layout::entry_path({key, kVersion})));
        }
        return 0;
    };
    const auto report = store.export_bundle(temporary / "all.bundle", everything);
    files.heal();
    REQUIRE(report.ok());
    CHECK(report->entries == kEntries / 2);
    CHECK(report->bad.empty());
    CHECK(report->unreadable.empty());
    const auto bundle = Bundle::open(files, temporary / "all.bundle");
    REQUIRE(bundle.ok());
    CHECK(bundle->verify().ok());
    CHECK(bundle->entries().size() == kEntries / 2);
    for (const auto& found : std::filesystem::directory_iterator(temporary.path()))
        CHECK((found.path().filename() == "cache" || found.path().filename() == "all.bundle"));
}

TEST_CASE("exports beside a program that clears and fills are bundles") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    const auto fill_shards = [&store] {
        for (std::uint64_t i = 0; i < 20; ++i)
            static_cast<void>(store.publish(Digest(i << 56, 1), kVersion, entry_of("payload")));
    };
    fill_shards();
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) {
            fill_shards();
            static_cast<void>(store.clear());
        }
    });
    std::uint64_t exported = 0;
    for (int i = 0; i < 50; ++i) {
        const auto report = store.export_bundle(temporary / "all.bundle", everything);
        CHECK(report.status().to_string() == "ok");
        if (!report || report->entries == 0) continue;
        exported += report->entries;
        CHECK(Bundle::open(posix_file_system(), temporary / "all.bundle")->verify().ok());
    }
    stop = true;
    other.join();
    CHECK(exported > 0);
}

TEST_CASE("an import syncs once before any entry has its name, and once after the last has") {
    const TemporaryDirectory temporary;
    const Store source({.directory = temporary / "cache"});
    for (std::uint64_t i = 0; i < 30; ++i)
        REQUIRE(source.publish(Digest(i << 56, 1), kVersion, entry_of("payload")).ok());
    export_all(source, temporary / "all.bundle");
    FaultyFileSystem files;
    const Store store({.directory = temporary / "copy", .file_system = &files});
    std::vector<Operation> order;
    files.fault = [&](Operation operation) {
        const bool matters = operation == Operation::file_write || operation == Operation::rename ||
                             operation == Operation::sync_file_system;
        if (matters && (order.empty() || order.back() != operation)) order.push_back(operation);
        return 0;
    };
    REQUIRE(store.import_bundle(temporary / "all.bundle")->published == 30);
    files.heal();
    CHECK(order == std::vector<Operation>{Operation::file_write, Operation::sync_file_system,
                                          Operation::rename, Operation::sync_file_system});
    CHECK(files.count(Operation::file_sync) == 0);
    CHECK(files.count(Operation::sync_directory) == 0);
    CHECK(store.list().entries.size() == 30);
}

TEST_CASE("an import goes on where somebody clears the staging files") {
    const TemporaryDirectory temporary;
    const Store source({.directory = temporary / "cache"});
    fill(source);
    export_all(source, temporary / "all.bundle");
    FaultyFileSystem files;
    const Store store({.directory = temporary / "copy", .file_system = &files});
    files.fault = [&](Operation operation) {
        if (operation == Operation::sync_file_system) std::filesystem::remove_all(temporary / "copy/staging");
        return 0;
    };
    REQUIRE(store.import_bundle(temporary / "all.bundle")->published == 3);
    CHECK(store.list().entries.size() == 3);
    CHECK(store.verify().bad.empty());
}

TEST_CASE("an import takes no bytes that changed after they were verified") {
    const TemporaryDirectory temporary;
    const Store source({.directory = temporary / "cache"});
    fill(source);
    const std::string file = temporary / "all.bundle";
    const std::string whole = export_all(source, file);
    const std::size_t at = whole.rfind("three");  // of the entry that is staged last
    REQUIRE(at != whole.npos);
    // While entries are staged; and where staging files are gone, so that entries are read again.
    for (const Operation when : {Operation::create, Operation::sync_file_system}) {
        write_text(file, whole);
        const std::string directory = temporary / (when == Operation::create ? "one" : "two");
        FaultyFileSystem files;
        const Store store({.directory = directory, .file_system = &files});
        bool changed = false;
        files.fault = [&](Operation operation) {
            if (operation != when || std::exchange(changed, true)) return 0;
            if (when == Operation::sync_file_system) std::filesystem::remove_all(directory + "/staging");
            std::fstream bundle(file, std::ios::in | std::ios::out | std::ios::binary);
            bundle.seekp(static_cast<std::streamoff>(at));
            bundle.put('T');
            return 0;
        };
        const auto report = store.import_bundle(file);
        CHECK(changed);
        REQUIRE_FALSE(report);
        CHECK_THAT(report.status().message, Catch::Contains("not a sound bundle"));
        CHECK(store.verify().bad.empty());
        CHECK(store.list().entries.size() < 3);
    }
}

TEST_CASE("an import that is killed leaves whole entries, and the next one the rest") {
    const TemporaryDirectory temporary;
    const Store source({.directory = temporary / "cache"});
    constexpr std::uint64_t kEntries = 100;
    for (std::uint64_t i = 0; i < kEntries; ++i)
        REQUIRE(source.publish(Digest(i << 56, 1), kVersion, entry_of(std::string(5000, 'x'))).ok());
    const std::string file = temporary / "all.bundle";
    export_all(source, file);
    std::mt19937 random(7);
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(Store({.directory = temporary / "timed"}).import_bundle(file));
    const std::chrono::duration<double, std::micro> one = std::chrono::steady_clock::now() - start;
    const auto longest = static_cast<useconds_t>(std::max(4000.0, 1.2 * one.count()));
    for (int kill = 0; kill < 40; ++kill) {
        const std::string directory = temporary / fmt::format("copy-{}", kill);
        ChildProcess child([&] {
            const Store store({.directory = directory});
            return store.import_bundle(file) ? 0 : 1;
        });
        ::usleep(std::uniform_int_distribution<useconds_t>(0, longest)(random));
        const int ended = child.kill();
        CHECK((ended == -SIGKILL || ended == 0));
        const Store store({.directory = directory});
        const VerifyReport found = store.verify();
        CHECK(found.bad.empty());
        if (ended == 0) CHECK(found.checked == kEntries);
        const auto rest = store.import_bundle(file);
        REQUIRE(rest);
        CHECK(rest->present == found.checked);
        CHECK(rest->present + rest->published == kEntries);
        std::filesystem::remove_all(directory);
    }
}

// attnsmith-cpu-tests "import of ten thousand entries of 40 KB"
TEST_CASE("import of ten thousand entries of 40 KB", "[.][benchmark]") {
    const TemporaryDirectory temporary;
    Forgery forgery;
    std::mt19937_64 random(11);
    std::string payload(40'000, '\0');
    for (std::uint64_t i = 0; i < 10'000; ++i) {
        for (std::size_t at = 0; at < payload.size(); at += 8) {
            const std::uint64_t word = random();
            std::memcpy(payload.data() + at, &word, sizeof word);
        }
        forgery.add(Digest(i * 0x0006'8db8'bac7'10cbULL, i), payload);
    }
    forgery.manifest_blocks = (forgery.parts.size() * 176 + 4096) / 512;
    const std::string file = temporary / "all.bundle";
    // The manifest's length is found by trying: it is the forgery that wants it told.
    for (;; ++forgery.manifest_blocks) {
        try {
            write_text(file, forgery.text());
            break;
        } catch (const std::runtime_error&) {
        }
    }
    const Store store({.directory = temporary / "copy"});
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(store.import_bundle(file)->published == 10'000);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    WARN(fmt::format("imported in {:.2f} s", took.count()));
}

TEST_CASE("export makes a file of the mode that the umask leaves") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const mode_t before = ::umask(077);
    export_all(store, temporary / "all.bundle");
    ::umask(before);
    struct ::stat info;
    REQUIRE(::stat((temporary / "all.bundle").c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("export stops where it is told to, and leaves nothing") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    std::stop_source stop;
    const auto stop_at_second = [&, seen = 0](const ListedEntry&) mutable {
        if (++seen == 2) stop.request_stop();
        return true;
    };
    std::filesystem::create_directory(temporary / "out");
    for (int attempt = 0; attempt < 2; ++attempt) {
        const auto report =
            store.export_bundle(temporary / "out/all.bundle", stop_at_second, stop.get_token());
        CHECK(report.status().error_number == ECANCELED);
        CHECK(count_files(temporary / "out") == 0);
    }
}

TEST_CASE("export removes what killed ones of its name left, and nothing else") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const std::string old = temporary / "out/all.bundle.0123456789abcdef.partial";
    const std::string others[] = {temporary / "out/all.bundle.fedcba9876543210.partial",
                                  temporary / "out/other.bundle.0123456789abcdef.partial",
                                  temporary / "out/all.bundle.0123456789abcdef",
                                  temporary / "out/all.partial"};
    write_text(old, "partial");
    for (const std::string& other : others) write_text(other, "");
    const auto an_hour_ago = std::filesystem::file_time_type::clock::now() - std::chrono::minutes(61);
    for (const std::string& file : {old, others[1], others[2], others[3]})
        std::filesystem::last_write_time(file, an_hour_ago);
    export_all(store, temporary / "out/all.bundle");
    CHECK_FALSE(std::filesystem::exists(old));
    for (const std::string& other : others) CHECK(std::filesystem::exists(other));
}

TEST_CASE("export says whose entries are in the bundle") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    // Evicted when it was listed already.
    const auto wanted = [&](const ListedEntry& entry) {
        if (entry.key == kThirdKey) std::filesystem::remove(entry.path);
        return true;
    };
    const auto report = store.export_bundle(temporary / "all.bundle", wanted);
    REQUIRE(report.ok());
    CHECK(report->keys == std::vector<Digest>{kKey, kKey});
    CHECK(report->bad.empty());
}

TEST_CASE("what is not trusted is neither exported nor taken for imported") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    export_all(store, temporary / "all.bundle");
    const std::string planted = store.candidates(kThirdKey).front().path;
    REQUIRE(::chmod(planted.c_str(), 0666) == 0);

    const auto report = store.export_bundle(temporary / "part.bundle", everything);
    REQUIRE(report.ok());
    CHECK(report->entries == 2);
    REQUIRE(report->bad.size() == 1);
    CHECK(report->bad.front().path == planted);
    CHECK_THAT(report->bad.front().reason, Catch::Contains("not trusted"));

    const auto imported = store.import_bundle(temporary / "all.bundle");
    REQUIRE(imported.ok());
    CHECK(imported->present == 2);
    CHECK(imported->published == 1);
    CHECK(load_newest(store, kThirdKey) == entry_of("three"));

    REQUIRE(::chmod((temporary / "cache").c_str(), 0777) == 0);
    CHECK(store.import_bundle(temporary / "all.bundle").status().error_number == EPERM);
}

TEST_CASE("import counts, and keeps within the limit") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    constexpr std::uint64_t kEntries = 12;
    const std::string payload(20000, 'x');
    for (std::uint64_t i = 0; i < kEntries; ++i) {
        REQUIRE(store.publish(Digest(i, 1), kVersion, entry_of(payload)).ok());
    }
    export_all(store, temporary / "all.bundle");

    const Store small({.directory = temporary / "small", .max_bytes = 100000});
    for (std::uint64_t i = 0; i < kEntries; ++i) {
        REQUIRE(Store({.directory = temporary / "small"})
                    .publish(Digest(i, 2), kVersion, entry_of(payload))
                    .ok());
    }
    // Long unused.
    const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(10);
    for (const ListedEntry& entry : small.list().entries)
        std::filesystem::last_write_time(entry.path, long_ago);
    REQUIRE(small.import_bundle(temporary / "all.bundle").ok());
    for (std::uint64_t i = 0; i < kEntries; ++i) {
        CHECK(small.candidates(Digest(i, 1)).size() == 1);
        CHECK(small.candidates(Digest(i, 2)).empty());
    }
    const CounterTotals counters = small.stat().counters;
    CHECK(counters[Event::bytes_published] >= kEntries * payload.size());
}

TEST_CASE("import refuses a manifest that is longer than it need be") {
    // Larger offsets: an entry's has a digit more, and the manifest a byte that needs a block more.
    Forgery forgery;
    forgery.add(Digest(0, 0), std::string(64922, 'x'));
    for (std::uint64_t i = 1; i < 62; ++i) forgery.add(Digest(i, 0), "x");
    forgery.manifest_blocks = 21;
    CHECK(import_of(forgery.text()) == "62 published");
    forgery.manifest_blocks = 22;
    CHECK(import_of(forgery.text()) ==
          refused_at(512, "the manifest's offsets are larger than they need be"));
}

TEST_CASE("import refuses what is no bundle") {
    CHECK(import_of("") == refused_at(0, "the file ends here"));
    CHECK(import_of(std::string(511, 'x')) == refused_at(511, "the file ends here"));
    CHECK(import_of(std::string(4096, '\0')) == refused_at(257, "there is no ustar header"));
    CHECK(import_of(tar_member("01/x", "text") + std::string(1024, '\0')) ==
          refused_at(0, "it begins with \"01/x\" instead of manifest.json"));
    CHECK(import_of(tar_member("manifest.json", "{}") + std::string(1024, '\0')) ==
          refused_at(512, "the manifest is not written as manifests are"));
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    CHECK(store.import_bundle(temporary / "missing").status().error_number == ENOENT);
    CHECK(store.import_bundle(temporary.path().string()).status().error_number == EINVAL);
    CHECK(store.import_bundle("/dev/null").status().error_number == EINVAL);
}

TEST_CASE("import refuses a bundle that lies, naming the byte") {
    Forgery forgery = two_entries();
    REQUIRE(import_of(forgery.text()) == "2 published");
    Forgery::Part& first = forgery.parts[0];
    Forgery::Part& second = forgery.parts[1];
    // The manifest begins at 512; its first path 46 bytes later. .
    const std::uint64_t kFirstPath = 512 + 56;
    SECTION("a path that leads out") {
        for (const char* path : {"../../../etc/passwd", "/etc/passwd", "01/../02/x.entry", "", "01",
                                 "01/0123456789abcdeffedcba9876543210-13.0.88.entry/x",
                                 "02/0123456789abcdeffedcba9876543210-13.0.88.entry",
                                 "01/0123456789ABCDEFfedcba9876543210-13.0.88.entry",
                                 "01/0123456789abcdeffedcba9876543210-13.0.088.entry"}) {
            Forgery tricked = forgery;
            tricked.parts[0].path_in_manifest = path;
            while (true) {  // the manifest's blocks are as many, whatever the path
                try {
                    tricked.text();
                    break;
                } catch (const std::runtime_error&) {
                    tricked.parts[1].sha256 += " ";
                }
            }
            CHECK(import_of(tricked.text()) ==
                  refused_at(kFirstPath, fmt::format("{} names no entry", tar::quoted(path))));
        }
    }
    SECTION("a name in the archive that is not the manifest's") {
        second.path = first.path, second.path_in_manifest = layout::entry_path({kThirdKey, kVersion});
        CHECK(import_of(forgery.text()) ==
              refused_at(2048, fmt::format("there is \"{}\", by the manifest it is {}", first.path,
                                           second.path_in_manifest)));
    }
    SECTION("an entry twice") {
        second = first;
        CHECK_THAT(import_of(forgery.text()), Catch::EndsWith(first.path + " is there twice)"));
    }
    SECTION("out of order") {
        std::swap(first, second);
        CHECK_THAT(import_of(forgery.text()), Catch::EndsWith(second.path + " is out of order)"));
    }
    SECTION("other bytes than the digest's") {
        second.sha256 = first.sha256;
        CHECK(import_of(forgery.text()) ==
              refused_at(2560, fmt::format("the SHA-256 of {} is not the manifest's", second.path)));
    }
    SECTION("no entry, under a right digest") {
        second.content = std::string(second.content.size(), 'x');
        second.sha256 = sha256_of(bytes_of(second.content)).hex();
        CHECK(import_of(forgery.text()) ==
              refused_at(2560, fmt::format("{}: not a cache entry", second.path)));
    }
    SECTION("another key's entry, under a right digest") {
        second.content = first.content, second.sha256 = first.sha256;
        second.bytes_in_manifest = first.bytes_in_manifest;
        CHECK(import_of(forgery.text()) ==
              refused_at(2560, fmt::format("{}: it is of key {}", second.path, kKey.hex())));
    }
    SECTION("another length") {
        ++second.bytes_in_manifest;
        CHECK(import_of(forgery.text()) ==
              refused_at(2048, fmt::format("{} has {} bytes, by the manifest {}", second.path,
                                           second.content.size(), second.content.size() + 1)));
    }
    SECTION("absurd lengths") {
        for (const std::uint64_t bytes : {std::uint64_t{79}, kMaxEntryBytes + 1, ~std::uint64_t{0}}) {
            second.bytes_in_manifest = bytes;
            CHECK_THAT(import_of(forgery.text()),
                       Catch::Contains(fmt::format("is said to have {} bytes", bytes)));
        }
    }
    SECTION("an offset to somewhere else") {
        second.offset_is_off_by = ~std::uint64_t{0} - 511;  // minus 512
        CHECK(import_of(forgery.text()) ==
              refused_at(2048,
                         fmt::format("the manifest has {} at 2048, where it is due at 2560", second.path)));
    }
    SECTION("bytes after the end") {
        forgery.end += "x";
        CHECK(import_of(forgery.text()) ==
              refused_at(4096, "the file has 4097 bytes, by its manifest it has 4096"));
    }
    SECTION("one block at the end instead of two") {
        forgery.end.resize(512);
        CHECK(import_of(forgery.text()) ==
              refused_at(3584, "the file has 3584 bytes, by its manifest it has 4096"));
    }
    SECTION("something in the last block") {
        forgery.end.back() = 'x';
        CHECK(import_of(forgery.text()) == refused_at(4095, "there is no zero"));
    }
    SECTION("another schema") {
        forgery.schema = "attnsmith.bundle/2";
        CHECK(import_of(forgery.text()) ==
              refused_at(524, "its schema is \"attnsmith.bundle/2\", this build reads attnsmith.bundle/1"));
    }
}

TEST_CASE("a manifest that says it is larger than any is not read") {
    const std::string header = text_of(tar::encode_header("manifest.json", Bundle::kMaxManifestBytes + 1));
    CHECK(import_of(header + std::string(1024, '\0')) ==
          refused_at(0, "a manifest of 67108865 bytes, where 67108864 are the most"));
    const std::string longer = text_of(tar::encode_header("manifest.json", Bundle::kMaxManifestBytes));
    CHECK(import_of(longer + std::string(1024, '\0')) ==
          refused_at(1536, "the file ends within its manifest"));
}

TEST_CASE("a bundle of nothing and one of many entries are bundles") {
    std::string empty = "{\"schema\": \"attnsmith.bundle/1\", \"entries\": [\n]}\n";
    CHECK(import_of(tar_member("manifest.json", empty) + std::string(1024, '\0')) == "0 published");

    // Enough for offsets of several lengths in the manifest whose length they decide.
    std::vector<BundledEntry> entries(1000);
    for (std::size_t i = 0; i < entries.size(); ++i) {
        entries[i].name = {Digest(i, 0), kVersion};
        entries[i].bytes = 100 + 97 * i;
    }
    const BundleHead head = place_entries(entries);
    CHECK(entries.front().offset == 1024 + tar::padded(head.manifest.size()));
    CHECK(head.file_bytes == entries.back().offset + tar::padded(entries.back().bytes) + 1024);
    CHECK_THAT(head.manifest, Catch::Contains(fmt::format("\"offset\": {},", entries.back().offset)));
}

TEST_CASE("a bundle with any byte changed is refused") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "flipped.bundle";
    const std::string sound = two_entries().text();
    write_text(file, sound);
    const Store store({.directory = temporary / "cache"});
    for (std::size_t at = 0; at < sound.size(); ++at) {
        for (const char change : {'\x01', '\x80', '\xff'}) {
            overwrite(file, at, static_cast<char>(sound[at] ^ change));
            const auto report = store.import_bundle(file);
            // No byte is free: nothing but what was exported is taken.
            if (report.ok() || report.status().error_number == ENOENT) FAIL("byte " << at);
        }
        overwrite(file, at, sound[at]);
    }
    CHECK(count_files(temporary / "cache") == 0);
    CHECK(store.import_bundle(file).ok());
}

TEST_CASE("a bundle of any other length is refused") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "cut.bundle";
    const std::string sound = two_entries().text();
    const Store store({.directory = temporary / "cache"});
    write_text(file, sound + std::string(512, '\0'));
    for (std::size_t bytes = sound.size() + 512; bytes > 0; --bytes) {
        std::filesystem::resize_file(file, bytes);
        if (bytes == sound.size()) continue;
        const auto report = store.import_bundle(file);
        if (report.ok() || report.status().error_number != EBADMSG) FAIL("length " << bytes);
    }
    CHECK(count_files(temporary / "cache") == 0);
}

}  // namespace attnsmith::cache
