// An entry damaged in any one place, its name included, is a miss, through the whole of Store.
#include <filesystem>

#include "cache/entries/layout.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using namespace testing;

struct DamageTest {
    TemporaryDirectory temporary;
    std::string directory = temporary / "cache";
    std::string file = directory + "/" + layout::entry_path({kKey, kVersion});
    std::string sound;

    DamageTest() {
        REQUIRE(Store({.directory = directory}).publish(kKey, kVersion, entry_of("payload")).ok());
        sound = read_text(file);
    }
};

// Whether the store serves anything for the key; what it serves must be what was published.
bool serves(const Store& store, const Digest& key) {
    for (const Candidate& candidate : store.candidates(key)) {
        const Result<Entry> entry = store.load(candidate);
        if (!entry) continue;
        if (key != kKey || candidate.version != kVersion || *entry != entry_of("payload")) {
            throw std::runtime_error("the wrong kernel is served");
        }
        return true;
    }
    return false;
}

}  // namespace

TEST_CASE_METHOD(DamageTest, "an entry with any byte of any other value is a miss") {
    // Read-only, so that the file stays where it is.
    const Store store({.directory = {}, .read_only_layers = {directory}});
    REQUIRE(serves(store, kKey));
    for (std::size_t at = 0; at < sound.size(); ++at) {
        for (int change = 1; change < 256; ++change) {
            overwrite(file, at, static_cast<char>(sound[at] ^ change));
            if (serves(store, kKey)) FAIL("byte " << at << " ^ " << change);
        }
        overwrite(file, at, sound[at]);
    }
    CHECK(serves(store, kKey));
}

TEST_CASE_METHOD(DamageTest, "an entry of any other length is a miss") {
    const Store store({.directory = {}, .read_only_layers = {directory}});
    write_text(file, sound + std::string(100, '\0'));
    for (std::size_t bytes = sound.size() + 100; bytes > 0; --bytes) {
        std::filesystem::resize_file(file, bytes);
        if (serves(store, kKey) != (bytes == sound.size())) FAIL("length " << bytes);
    }
    std::filesystem::resize_file(file, 0);
    CHECK_FALSE(serves(store, kKey));
}

TEST_CASE_METHOD(DamageTest, "a damaged entry goes to quarantine and its key can be published again") {
    const Store store({.directory = directory});
    for (std::size_t at = 0; at < sound.size(); at += 7) {
        overwrite(file, at, static_cast<char>(~sound[at]));
        CHECK_FALSE(serves(store, kKey));
        CHECK_FALSE(std::filesystem::exists(file));
        REQUIRE(store.publish(kKey, kVersion, entry_of("payload")).ok());
        CHECK(serves(store, kKey));
    }
}

TEST_CASE_METHOD(DamageTest, "an entry under a name with any character changed is served under no key") {
    const Store store({.directory = {}, .read_only_layers = {directory}});
    const std::string name = layout::entry_path({kKey, kVersion});
    int served = 0;
    for (std::size_t at = 0; at < name.size(); ++at) {
        for (const char other : std::string_view("0123456789abcdefF.-_ex ")) {
            if (other == name[at] || name[at] == '/') continue;
            std::string changed = name;
            changed[at] = other;
            const std::string path = directory + "/" + changed;
            std::filesystem::create_directories(std::filesystem::path(path).parent_path());
            std::filesystem::rename(file, path);
            served += serves(store, kKey) ? 1 : 0;
            // Also by whoever asks for the key that the name now says.
            const auto slash = changed.find('/');
            if (const auto parsed =
                    layout::parse_entry_name(changed.substr(0, slash), changed.substr(slash + 1))) {
                served += serves(store, parsed->key) ? 1 : 0;
            }
            std::filesystem::rename(path, file);
        }
    }
    CHECK(served == 0);
    CHECK(serves(store, kKey));
}

}  // namespace attnsmith::cache
