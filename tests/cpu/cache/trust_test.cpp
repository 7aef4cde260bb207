// Whose directories are used, and directories that a group shares.

#include "cache/files/trust.hpp"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "cache/entries/layout.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "cache/store/store.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using testing::ChildProcess;
using testing::count_files;
using testing::entry_of;
using testing::kKey;
using testing::kOtherKey;
using testing::kVersion;
using testing::load_newest;
using testing::TemporaryDirectory;
using testing::Warnings;

namespace {

constexpr uid_t kAlice = 54321;
constexpr uid_t kBob = 54322;
constexpr gid_t kFleet = 54323;

FileInfo owned_by(std::uint32_t owner, std::uint32_t group, std::uint32_t mode) {
    FileInfo info;
    info.mode = mode;
    info.owner = owner;
    info.group = group;
    return info;
}

bool trusted(const FileInfo& info, Trust trust) { return !reason_for_distrust(info, trust).has_value(); }

bool become(uid_t user, gid_t group) {
    return ::setgroups(1, &group) == 0 && ::setgid(group) == 0 && ::setuid(user) == 0;
}

// Anybody's will do: nothing in these tests is signed by it.
PublicKey some_key() {
    const Ed25519& library = *ed25519().value();
    return library.public_key_of(library.generate().value()).value();
}

mode_t mode_of(const std::string& path) {
    struct ::stat found {};
    return ::stat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
}

std::string entry_file(const std::string& directory) {
    return directory + "/" + layout::entry_path({kKey, kVersion});
}

}  // namespace

TEST_CASE("Trust: owner takes what only this user or root can write to", "[cache][trust]") {
    const std::uint32_t user = ::geteuid();
    const std::uint32_t other = user + 12345;
    CHECK(trusted(owned_by(user, other, 0700), Trust::owner));
    CHECK(trusted(owned_by(user, other, 0755), Trust::owner));
    CHECK(trusted(owned_by(0, other, 0755), Trust::owner));
    CHECK_FALSE(trusted(owned_by(user, ::getegid(), 0775), Trust::owner));
    CHECK_FALSE(trusted(owned_by(user, ::getegid(), 0720), Trust::owner));
    CHECK_FALSE(trusted(owned_by(user, ::getegid(), 0702), Trust::owner));
    CHECK_FALSE(trusted(owned_by(0, other, 01777), Trust::owner));
    CHECK_FALSE(trusted(owned_by(other, ::getegid(), 0700), Trust::owner));
}

TEST_CASE("Trust: group takes its group's, but never the world's", "[cache][trust]") {
    const std::uint32_t user = ::geteuid();
    const std::uint32_t other = user + 12345;
    const std::uint32_t foreign_group = ::getegid() + 54321;
    CHECK(trusted(owned_by(user, foreign_group, 0770), Trust::group));
    CHECK(trusted(owned_by(0, foreign_group, 0775), Trust::group));
    CHECK(trusted(owned_by(other, ::getegid(), 02770), Trust::group));
    CHECK_FALSE(trusted(owned_by(other, foreign_group, 0755), Trust::group));
    // Its group is one that everybody is in, and its owner alone may write to it.
    CHECK_FALSE(trusted(owned_by(other, ::getegid(), 0755), Trust::group));
    CHECK_FALSE(trusted(owned_by(user, ::getegid(), 0777), Trust::group));
    CHECK(trusted(owned_by(other, foreign_group, 0777), Trust::all));
}

TEST_CASE("Trust: the reason names owner and mode", "[cache][trust]") {
    const auto reason = reason_for_distrust(owned_by(::geteuid(), 7, 0777), Trust::owner);
    REQUIRE(reason);
    CHECK(reason->find("mode 0777") != std::string::npos);
    CHECK(reason->find("owner " + std::to_string(::geteuid())) != std::string::npos);
}

TEST_CASE("Trust: the remedy says only what would help", "[cache][trust]") {
    const std::uint32_t user = ::geteuid();
    const auto has = [](const FileInfo& info, Trust trust, const std::string& part) {
        return trust_remedy(info, trust).find(part) != std::string::npos;
    };
    const FileInfo of_the_world = owned_by(user, ::getegid(), 0777);
    CHECK(has(of_the_world, Trust::owner, "chmod go-w"));
    CHECK_FALSE(has(of_the_world, Trust::owner, "group"));
    CHECK_FALSE(has(of_the_world, Trust::group, "group"));
    const FileInfo of_a_group = owned_by(user, ::getegid(), 0775);
    CHECK(has(of_a_group, Trust::owner, "chmod go-w"));
    CHECK(has(of_a_group, Trust::owner, "group or all"));
    const FileInfo foreign = owned_by(user + 12345, ::getegid() + 54321, 0755);
    CHECK_FALSE(has(foreign, Trust::owner, "chmod"));
    CHECK_FALSE(has(foreign, Trust::owner, "group"));
    CHECK(has(foreign, Trust::group, "--cache-trust all"));
}

TEST_CASE("Store: a directory that others may write to is neither read nor written, and told once",
          "[cache][trust]") {
    TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    REQUIRE(Store({.directory = directory}).publish(kKey, kVersion, entry_of("payload")).ok());
    const std::size_t files = count_files(directory);
    const mode_t mode = GENERATE(0775, 0777, 01777);
    ::chmod(directory.c_str(), mode);
    Warnings warnings;
    const Store store({.directory = directory, .warn = warnings.callback()});
    CHECK(store.candidates(kKey).empty());
    CHECK(store.publish(kOtherKey, kVersion, entry_of("other")).error_number == EPERM);
    CHECK(store.lock(kKey).state() == LockState::unavailable);
    const Listing listing = store.list();
    CHECK(listing.entries.empty());
    REQUIRE(listing.unreadable.size() == 1);
    CHECK(listing.unreadable[0].path == directory);
    CHECK(listing.unreadable[0].message.find("not trusted") != std::string::npos);
    CHECK(store.clear().status.error_number == EPERM);
    const Statistics statistics = store.stat();
    CHECK_FALSE(statistics.writable);
    CHECK_FALSE(statistics.not_trusted_because.empty());
    CHECK(store.verify().bad.size() == 1);
    CHECK(count_files(directory) == files);
    REQUIRE(warnings.count() == 1);
    CHECK(warnings.messages()[0].find("chmod go-w") != std::string::npos);
    CHECK(warnings.messages()[0].find(directory) != std::string::npos);

    ::chmod(directory.c_str(), 0755);
    CHECK(load_newest(store, kKey) == entry_of("payload"));
    CHECK(store.stat().not_trusted_because.empty());
}

TEST_CASE("Store: a directory that others may write to is used when it is trusted", "[cache][trust]") {
    TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    std::filesystem::create_directory(directory);
    ::chmod(directory.c_str(), 0777);
    const Store store({.directory = directory, .trust = Trust::all});
    REQUIRE(store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(load_newest(store, kKey) == entry_of("payload"));
    CHECK(store.stat().writable);
}

TEST_CASE("Store: verify tells of an entry that is not trusted, and leaves it", "[cache][trust]") {
    TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    REQUIRE(store.publish(kKey, kVersion, entry_of("payload")).ok());
    REQUIRE(::chmod(entry_file(temporary / "cache").c_str(), 0666) == 0);
    const VerifyReport report = store.verify();
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].reason.find("not trusted") != std::string::npos);
    CHECK(report.bad[0].action == "left in place");
}

TEST_CASE("Store: a layer that is not trusted is passed over, and those below it are used",
          "[cache][trust]") {
    TemporaryDirectory temporary;
    for (const char* layer : {"bad", "good"}) {
        REQUIRE(Store({.directory = temporary / layer}).publish(kKey, kVersion, entry_of(layer)).ok());
    }
    ::chmod((temporary / "bad").c_str(), 0777);
    Warnings warnings;
    const Store store({.directory = temporary / "own",
                       .read_only_layers = {temporary / "bad", temporary / "good"},
                       .warn = warnings.callback()});
    for (int round = 0; round < 2; ++round) CHECK(load_newest(store, kKey) == entry_of("good"));
    CHECK(store.publish(kOtherKey, kVersion, entry_of("own")).ok());
    REQUIRE(warnings.count() == 1);
    CHECK(warnings.messages()[0].find(temporary / "bad") != std::string::npos);
    const Statistics statistics = store.stat();
    CHECK(statistics.not_trusted_because.empty());
    REQUIRE(statistics.layers.size() == 2);
    CHECK_FALSE(statistics.layers[0].not_trusted_because.empty());
    CHECK(statistics.layers[1].not_trusted_because.empty());
}

TEST_CASE("Store: an entry that others may write to is passed over and stays", "[cache][trust]") {
    TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    Warnings warnings;
    const Store store({.directory = directory, .warn = warnings.callback()});
    REQUIRE(store.publish(kKey, kVersion, entry_of("payload")).ok());
    ::chmod(entry_file(directory).c_str(), 0666);
    for (int round = 0; round < 2; ++round) {
        CHECK(store.load(store.candidates(kKey).front()).status().error_number == EPERM);
    }
    CHECK(warnings.count() == 1);
    CHECK(std::filesystem::exists(entry_file(directory)));
    CHECK(store.publish(kKey, kVersion, entry_of("again")).ok());
    CHECK(load_newest(store, kKey) == entry_of("again"));
}

TEST_CASE("Store: what is made inside has the directory's bits, whatever the umask", "[cache][trust]") {
    TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    std::filesystem::create_directory(directory);
    ::chmod(directory.c_str(), 02770);
    const mode_t old_mask = ::umask(0077);
    const Store store({.directory = directory, .trust = Trust::group});
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(store.lock(kKey).held());
    ::umask(old_mask);
    CHECK(mode_of(directory + "/01") == 02770);
    CHECK(mode_of(directory + "/staging") == 02770);
    CHECK(mode_of(entry_file(directory)) == 0660);
    CHECK(mode_of(directory + "/" + layout::lock_path(kKey)) == 0660);
}

TEST_CASE("Store: two users of a group share a directory that they trust", "[cache][trust]") {
    if (::geteuid() != 0) {
        WARN("not run: only root can become two users");
        return;
    }
    TemporaryDirectory temporary;
    ::chmod(temporary.path().c_str(), 0755);
    const std::string directory = temporary / "fleet";
    std::filesystem::create_directory(directory);
    REQUIRE(::chown(directory.c_str(), kAlice, kFleet) == 0);
    ::chmod(directory.c_str(), 02770);
    const auto as = [&](uid_t user, Trust trust, const std::function<int(const Store&, Warnings&)>& work,
                        const std::vector<PublicKey>& keys = {}) {
        return ChildProcess([&] {
                   if (!become(user, kFleet)) return 90;
                   ::umask(022);
                   Warnings warnings;
                   const Store store({.directory = directory,
                                      .trust = trust,
                                      .trusted_keys = keys,
                                      .warn = warnings.callback()});
                   const int result = work(store, warnings);
                   return result != 0 ? result : warnings.count() == 0 ? 0 : 91;
               })
            .wait();
    };
    CHECK(as(kAlice, Trust::group, [](const Store& store, Warnings&) {
              const Lock lock = store.lock(kKey);
              return lock.held() && store.publish(kKey, kVersion, entry_of("alice")).ok() ? 0 : 1;
          }) == 0);
    CHECK(as(kBob, Trust::group, [](const Store& store, Warnings&) {
              if (load_newest(store, kKey) != entry_of("alice")) return 1;
              if (!store.lock(kKey).held()) return 2;
              if (!store.publish(kOtherKey, kVersion, entry_of("bob")).ok()) return 3;
              return store.publish(kKey, kVersion, entry_of("bob")).ok() ? 0 : 4;
          }) == 0);
    CHECK(as(kAlice, Trust::group, [](const Store& store, Warnings&) {
              return load_newest(store, kKey) == entry_of("bob") && store.verify().bad.empty() ? 0 : 1;
          }) == 0);
    // Who trusts keys takes what is its own and no more, though the directory is the group's.
    CHECK(as(kBob, Trust::group,
             [&](const Store& store, Warnings& warnings) {
                 if (store.load(store.candidates(kKey).front()).status().error_number != EPERM) return 1;
                 if (warnings.count() != 1) return 2;
                 if (!store.publish(kKey, kVersion, entry_of("own")).ok()) return 3;
                 return load_newest(store, kKey) == entry_of("own") ? 93 : 4;
             },
             {some_key()}) == 93);
    CHECK(mode_of(entry_file(directory)) == 0640);
    // By default another user's directory is none.
    CHECK(as(kBob, Trust::owner, [](const Store& store, Warnings& warnings) {
              return store.candidates(kKey).empty() && warnings.count() == 1 ? 92 : 1;
          }) == 92);
}

}  // namespace attnsmith::cache
