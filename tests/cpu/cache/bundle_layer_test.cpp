// A bundle as a read-only layer: right bytes or a miss, whatever happens to the file.
#include <atomic>
#include <filesystem>
#include <thread>

#include "bundle_fixture.hpp"
#include "cache/bundle/bundle.hpp"
#include "faulty_file_system.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using namespace testing;

const Digest kThirdKey(0xfe00000000000000, 1);

Forgery two_entries() {
    Forgery forgery;
    forgery.add(kKey, "first");
    forgery.add(kThirdKey, "second");
    return forgery;
}

struct Fixture {
    TemporaryDirectory temporary;
    std::string file = temporary / "kernels.bundle";
    Warnings warnings;
    FaultyFileSystem files;

    Fixture() { write_text(file, two_entries().text()); }
    Options options() {
        return {.directory = temporary / "cache",
                .read_only_layers = {file},
                .file_system = &files,
                .warn = warnings.callback()};
    }
};

// Whether what is there is right, if anything is. How many hits.
int right_or_missing(const Store& store) {
    int hits = 0;
    for (const auto& [key, payload] : {std::pair(kKey, "first"), std::pair(kThirdKey, "second")}) {
        for (const Candidate& candidate : store.candidates(key)) {
            const Result<Entry> entry = store.load(candidate);
            if (!entry) continue;
            ++hits;
            if (*entry != entry_of(payload)) return -1;
        }
    }
    return hits;
}

}  // namespace

TEST_CASE_METHOD(Fixture, "a bundle among the layers gives its entries") {
    const Store store(options());
    CHECK(load_newest(store, kKey) == entry_of("first"));
    CHECK(load_newest(store, kThirdKey) == entry_of("second"));
    CHECK(store.candidates(kOtherKey).empty());
    const Candidate candidate = store.candidates(kKey).front();
    CHECK(candidate.layer == 1);
    CHECK(candidate.path == file + "/" + layout::entry_path({kKey, kVersion}));
    CHECK(store.load({kOtherKey, kVersion, 1, {}}).status().error_number == ENOENT);
    CHECK(warnings.count() == 0);
    CHECK_FALSE(std::filesystem::exists(temporary / "cache"));
}

TEST_CASE_METHOD(Fixture, "a bundle is listed, measured and verified as other layers are") {
    const Store store(options());
    const auto listed = store.list().entries;
    REQUIRE(listed.size() == 2);
    CHECK(listed[0].key == kKey);
    CHECK(listed[0].metadata == entry_of("").metadata);
    CHECK(listed[0].layer == 1);
    CHECK(listed[0].bytes == encode_entry(kKey, kVersion, entry_of("first")).size());
    const Statistics statistics = store.stat();
    CHECK(statistics.entries == 0);
    REQUIRE(statistics.layers.size() == 1);
    CHECK(statistics.layers[0].directory == file);
    CHECK(statistics.layers[0].entries == 2);
    const VerifyReport report = store.verify();
    CHECK(report.checked == 2);
    CHECK(report.bad.empty());
    CHECK(store.clear().entries == 0);
    CHECK(right_or_missing(store) == 2);
}

TEST_CASE_METHOD(Fixture, "verify finds any byte of a bundle that differs, and tells it once") {
    const std::string sound = two_entries().text();
    for (std::size_t at = 0; at < sound.size(); ++at) {
        std::string text = sound;
        text[at] = static_cast<char>(text[at] ^ 1);
        write_text(file, text);
        INFO(at);
        CHECK(Store(options()).verify().bad.size() == 1);
    }
}

TEST_CASE_METHOD(Fixture, "verify tells of each bundle, also where one's name begins with another's") {
    std::string text = two_entries().text();
    text[text.size() - 1] = 'x';
    write_text(file, text);
    write_text(file + "2", text);
    Options both = options();
    both.read_only_layers = {file + "2", file};
    const VerifyReport report = Store(both).verify();
    CHECK(report.bad.size() == 2);
    CHECK(report.unusable == 2);
}

TEST_CASE_METHOD(Fixture, "a bundle is opened once, and a hit in it is one read") {
    const Store store(options());
    CHECK(files.count(Operation::open_for_reading) == 1);
    const auto candidates = store.candidates(kKey);
    files.reset_counts();
    REQUIRE(store.load(candidates.front()).ok());
    CHECK(files.count(Operation::file_read) == 1);
    CHECK(files.count_all() == 1);
}

TEST_CASE_METHOD(Fixture, "an entry published beside a bundle comes before the bundle's") {
    const Store store(options());
    REQUIRE(store.publish(kKey, kVersion, entry_of("our own")).ok());
    CHECK(load_newest(store, kKey) == entry_of("our own"));
    CHECK(store.candidates(kKey).size() == 2);
    CHECK(read_text(file) == two_entries().text());
}

TEST_CASE_METHOD(Fixture, "what is no bundle is passed over with one warning") {
    const std::string text = GENERATE(std::string(), std::string("text"), std::string(4096, '\0'),
                                      two_entries().text().substr(0, 4000));
    write_text(file, text);
    const Store store(options());
    CHECK(right_or_missing(store) == 0);
    REQUIRE(warnings.count() == 1);
    CHECK_THAT(warnings.messages().front(), Catch::Contains(file) && Catch::Contains("not a sound bundle"));
    const VerifyReport report = store.verify();
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].path == file);
}

TEST_CASE_METHOD(Fixture, "a link to a bundle is followed, for the user chose it") {
    std::filesystem::create_symlink(file, temporary / "link");
    Options through_link = options();
    through_link.read_only_layers = {temporary / "link"};
    CHECK(right_or_missing(Store(through_link)) == 2);
}

TEST_CASE_METHOD(Fixture, "a bundle that is replaced or removed in use goes on as it was") {
    const Store store(options());
    SECTION("removed") { std::filesystem::remove(file); }
    SECTION("replaced") {
        write_text(temporary / "new", "no bundle");
        std::filesystem::rename(temporary / "new", file);
    }
    CHECK(right_or_missing(store) == 2);
}

TEST_CASE_METHOD(Fixture, "a bundle cut or overwritten in use is a miss") {
    const Store store(options());
    const std::size_t whole = read_text(file).size();
    for (std::size_t bytes = whole; bytes-- > 0;) {
        std::filesystem::resize_file(file, bytes);
        if (right_or_missing(store) < 0) FAIL("length " << bytes);
    }
    CHECK(right_or_missing(store) == 0);
    write_text(file, std::string(whole, 'x'));
    CHECK(right_or_missing(store) == 0);
    CHECK(warnings.count() == 1);
    write_text(file, two_entries().text());
    CHECK(right_or_missing(store) == 2);
}

TEST_CASE_METHOD(Fixture, "a bundle with any byte changed gives the right bytes or a miss") {
    const std::string sound = read_text(file);
    int hits = 0;
    for (std::size_t at = 0; at < sound.size(); ++at) {
        for (const char change : {'\x01', '\x80', '\xff'}) {
            overwrite(file, at, static_cast<char>(sound[at] ^ change));
            const int found = right_or_missing(Store({.directory = {}, .read_only_layers = {file}}));
            if (found < 0) FAIL("byte " << at);
            hits += found;
        }
        overwrite(file, at, sound[at]);
    }
    CHECK(hits > 0);
}

TEST_CASE_METHOD(Fixture, "a bundle of any other length is passed over") {
    for (std::size_t bytes = read_text(file).size(); bytes-- > 0;) {
        std::filesystem::resize_file(file, bytes);
        if (right_or_missing(Store({.directory = {}, .read_only_layers = {file}})) != 0)
            FAIL("length " << bytes);
    }
}

TEST_CASE_METHOD(Fixture, "an error at any operation on a bundle is a miss") {
    for (const int error_number : {EIO, ESTALE, EMFILE, EACCES}) {
        for (std::size_t n = 0;; ++n) {
            files.reset_counts();
            files.fail_once_at(n, error_number);
            const Store store(options());
            if (right_or_missing(store) < 0) FAIL("operation " << n);
            const bool reached = files.count_all() > n;
            files.heal();
            if (!reached) break;
        }
    }
    files.most_bytes_per_read = 7;
    CHECK(right_or_missing(Store(options())) == 2);
}

TEST_CASE_METHOD(Fixture, "threads read a bundle side by side, while it is overwritten") {
    const Store store(options());
    std::atomic<bool> wrong = false;
    std::atomic<bool> done = false;
    {
        std::vector<std::jthread> readers;
        for (int i = 0; i < 4; ++i) {
            readers.emplace_back([&] {
                while (!done) wrong = wrong || right_or_missing(store) < 0;
            });
        }
        for (int round = 0; round < 200; ++round) {
            overwrite(file, static_cast<std::size_t>(1100 + 9 * round), 'x');
        }
        done = true;
    }
    CHECK_FALSE(wrong);
    CHECK(right_or_missing(store) == 0);
}

TEST_CASE_METHOD(Fixture, "a child made by fork reads the bundle on its own") {
    const Store store(options());
    ChildProcess child([&] { return right_or_missing(store); });
    CHECK(right_or_missing(store) == 2);
    CHECK(child.wait() == 2);
}

}  // namespace attnsmith::cache
