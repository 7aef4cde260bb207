// Images: the documents and the layer as FORMAT.md gives them, what may be replaced, and failures on the way.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cache/bundle/tar.hpp"
#include "cache/entries/layout.hpp"
#include "cache/image/oci.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using Json = nlohmann::json;

const Digest kThirdKey(0xfe00000000000000, 1);
const Version kOldVersion{9, 1, 2};

bool everything(const ListedEntry&) { return true; }

void fill(const Store& store) {
    REQUIRE(store.publish(kKey, kVersion, entry_of("one")).ok());
    REQUIRE(store.publish(kKey, kOldVersion, entry_of("one, older")).ok());
    REQUIRE(store.publish(kThirdKey, kVersion, entry_of("three")).ok());
}

ImageOptions image_at(const std::string& directory, const std::string& tag = "latest") {
    return {.directory = directory,
            .tag = tag,
            .architecture = "amd64",
            .environment = {"CACHE=/var:/opt"},
            .describe = [](std::span<const ListedEntry>) {
                return std::map<std::string, std::string>{{"test.label", "of the engine"}};
            }};
}

Result<ImageReport> export_to(const Store& store, const std::string& directory) {
    return store.export_image(image_at(directory), everything);
}

ImageReport exported(const Store& store, const std::string& directory) {
    Result<ImageReport> report = export_to(store, directory);
    if (!report) throw std::runtime_error(report.status().to_string());
    return std::move(report).value();
}

// Every file below a directory: its path, and its bytes.
using Tree = std::map<std::string, std::string>;
Tree tree_of(const std::string& directory) {
    Tree tree;
    for (const auto& found : fs::recursive_directory_iterator(directory)) {
        const std::string path = fs::relative(found.path(), directory);
        if (!found.is_directory()) tree[path] = read_text(found.path());
    }
    return tree;
}

std::string digest_of_text(std::string_view text) {
    return oci::digest_text(sha256_of(std::as_bytes(std::span(text))));
}

// The blob that a descriptor names, whose digest and size are right.
std::string blob_of(const Tree& tree, const Json& descriptor) {
    const std::string digest = descriptor.at("digest");
    const std::string& text = tree.at("blobs/sha256/" + digest.substr(7));
    CHECK(digest_of_text(text) == digest);
    CHECK(descriptor.at("size") == text.size());
    return text;
}

// What an image holds, every digest and size of it checked.
struct Image {
    Json index, manifest, config;
    std::string layer;
};

Image read_image(const std::string& directory) {
    const Tree tree = tree_of(directory);
    CHECK(tree.size() == 5);
    CHECK(Json::parse(tree.at("oci-layout")) == Json{{"imageLayoutVersion", "1.0.0"}});
    Image image;
    image.index = Json::parse(tree.at("index.json"));
    REQUIRE(image.index.at("manifests").size() == 1);
    image.manifest = Json::parse(blob_of(tree, image.index.at("manifests").at(0)));
    image.config = Json::parse(blob_of(tree, image.manifest.at("config")));
    REQUIRE(image.manifest.at("layers").size() == 1);
    image.layer = blob_of(tree, image.manifest.at("layers").at(0));
    CHECK(image.config.at("rootfs").at("diff_ids") == Json::array({digest_of_text(image.layer)}));
    return image;
}

struct Member {
    std::string name;
    char type = '0';
    std::string content;
};

// A reader of its own, which takes no more of ustar than layers need.
std::vector<Member> members_of(const std::string& layer) {
    std::vector<Member> members;
    std::size_t at = 0;
    while (layer.at(at) != '\0') {
        const std::string header = layer.substr(at, 512);
        const auto text = [&](std::size_t offset, std::size_t bytes) {
            const std::string field = header.substr(offset, bytes);
            return field.substr(0, field.find('\0'));
        };
        Member member{text(0, 100), header[156], {}};
        CHECK(text(100, 8) == (member.type == '5' ? "0000755" : "0000644"));
        CHECK(text(108, 8) == "0000000");
        CHECK(text(116, 8) == "0000000");
        CHECK(text(136, 12) == "00000000000");
        CHECK(header.substr(265, 64) == std::string(64, '\0'));
        const std::size_t bytes = std::stoul(text(124, 12), nullptr, 8);
        member.content = layer.substr(at + 512, bytes);
        at += 512 + (bytes + 511) / 512 * 512;
        members.push_back(std::move(member));
    }
    CHECK(layer.substr(at) == std::string(1024, '\0'));
    return members;
}

}  // namespace

TEST_CASE("an image has the documents that FORMAT.md gives", "[oci]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const ImageReport report = exported(store, temporary / "image/");
    CHECK(report.entries == 3);
    CHECK(report.keys == std::vector<Digest>{kKey, kKey, kThirdKey});

    const Image image = read_image(temporary / "image");
    const Json& described = image.index.at("manifests").at(0);
    CHECK(described.at("digest") == oci::digest_text(report.manifest));
    CHECK(described.at("annotations") == Json{{"org.opencontainers.image.ref.name", "latest"}});
    CHECK(described.at("platform") == Json{{"architecture", "amd64"}, {"os", "linux"}});
    CHECK(image.manifest.at("layers").at(0).at("mediaType") == "application/vnd.oci.image.layer.v1.tar");
    CHECK(report.bytes == image.layer.size());
    const Json labels = {{"io.attnsmith.entries", "3"},
                         {"io.attnsmith.bytes", fmt::to_string(store.stat().bytes)},
                         {"io.attnsmith.toolchains", "9.1.2,13.0.88"},
                         {"io.attnsmith.directory", "/opt/attnsmith/cache"},
                         {"test.label", "of the engine"}};
    CHECK(image.config.at("config").at("Labels") == labels);
    CHECK(image.config.at("config").at("Env") == Json::array({"CACHE=/var:/opt"}));
    CHECK(image.config.at("architecture") == "amd64");
    CHECK(image.config.at("os") == "linux");
    Json annotations = labels;
    annotations["io.attnsmith.schema"] = "attnsmith.image/1";
    CHECK(image.manifest.at("annotations") == annotations);
    CHECK_FALSE(image.config.contains("created"));
    CHECK(count_files(temporary / "cache") + 5 == count_files(temporary.path()));  // nothing beside it
    struct ::stat info;
    REQUIRE(::stat((temporary / "image/blobs/sha256").c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0755);
    REQUIRE(::stat((temporary / "image/index.json").c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0644);
}

TEST_CASE("the layer is a cache directory, each directory before what is in it", "[oci]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    exported(store, temporary / "image");
    const std::vector<Member> members = members_of(read_image(temporary / "image").layer);
    std::vector<std::string> names;
    for (const Member& member : members) {
        names.push_back(member.name);
        if (member.type == '5') continue;
        CHECK(member.type == '0');
        const std::string path = member.name.substr(std::string("opt/attnsmith/cache/").size());
        CHECK(member.content == read_text(temporary / ("cache/" + path)));
    }
    CHECK(names == std::vector<std::string>{
                       "opt/", "opt/attnsmith/", "opt/attnsmith/cache/", "opt/attnsmith/cache/01/",
                       "opt/attnsmith/cache/01/0123456789abcdeffedcba9876543210-13.0.88.entry",
                       "opt/attnsmith/cache/01/0123456789abcdeffedcba9876543210-9.1.2.entry",
                       "opt/attnsmith/cache/fe/",
                       "opt/attnsmith/cache/fe/fe000000000000000000000000000001-13.0.88.entry"});
}

TEST_CASE("the longest name of an entry fits into a layer's header", "[oci]") {
    const Version longest{2147483647, 2147483647, 2147483647};
    CHECK(oci::path_in_layer(layout::entry_path({kKey, longest})).size() <= tar::kLongestName);
}

TEST_CASE("the same entries give the same image, whatever their order and directory", "[oci]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    exported(store, temporary / "a");
    const Tree image = tree_of(temporary / "a");

    const Store other({.directory = temporary / "elsewhere/kernels"});
    REQUIRE(other.publish(kThirdKey, kVersion, entry_of("three")).ok());
    REQUIRE(other.publish(kKey, kOldVersion, entry_of("one, older")).ok());
    REQUIRE(other.publish(kKey, kVersion, entry_of("one")).ok());
    exported(other, temporary / "b");
    CHECK(tree_of(temporary / "b") == image);

    // Half here and half in a layer, one of them twice.
    const Store half({.directory = temporary / "half"});
    REQUIRE(half.publish(kKey, kOldVersion, entry_of("one, older")).ok());
    const Store layered({.directory = temporary / "half", .read_only_layers = {temporary / "cache"}});
    exported(layered, temporary / "c");
    CHECK(tree_of(temporary / "c") == image);
    // Over itself.
    exported(layered, temporary / "c");
    CHECK(tree_of(temporary / "c") == image);
}

TEST_CASE("an image is of what is wanted, and of nothing broken", "[oci]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    SECTION("a choice") {
        const auto report = store.export_image(image_at(temporary / "image"), [](const ListedEntry& entry) {
            return entry.version == kOldVersion;
        });
        REQUIRE(report.ok());
        CHECK(report->entries == 1);
        CHECK(members_of(read_image(temporary / "image").layer).size() == 5);
    }
    SECTION("nothing wanted, no directory") {
        const auto report =
            store.export_image(image_at(temporary / "image"), [](const ListedEntry&) { return false; });
        REQUIRE(report.ok());
        CHECK(report->entries == 0);
        CHECK_FALSE(fs::exists(temporary / "image"));
    }
    SECTION("a broken entry") {
        const std::string victim = store.candidates(kThirdKey).front().path;
        overwrite(victim, 70, '?');
        const ImageReport report = exported(store, temporary / "image");
        CHECK(report.entries == 2);
        REQUIRE(report.bad.size() == 1);
        CHECK(report.bad.front().path == victim);
        // Its shard, which has nothing else, is not there either.
        for (const Member& member : members_of(read_image(temporary / "image").layer))
            CHECK(member.name.find("/fe/") == std::string::npos);
    }
    SECTION("nothing but broken entries, no directory") {
        for (const ListedEntry& entry : store.list().entries) write_text(entry.path, "broken");
        CHECK(exported(store, temporary / "image").bad.size() == 3);
        CHECK_FALSE(fs::exists(temporary / "image"));
        CHECK(count_files(temporary.path()) == count_files(temporary / "cache"));
    }
    SECTION("a stop") {
        std::stop_source source;
        source.request_stop();
        const auto report = store.export_image(image_at(temporary / "image"), everything, source.get_token());
        CHECK(report.status().error_number == ECANCELED);
        CHECK_FALSE(fs::exists(temporary / "image"));
    }
}

TEST_CASE("tags are those that registries take", "[oci]") {
    for (const char* tag : {"latest", "v1.2-rc_3", "_", "0", "A"}) CHECK(oci::is_tag(tag));
    CHECK(oci::is_tag(std::string(128, 't')));
    for (const char* tag : {"", ".a", "-a", "a b", "a/b", "a:b", "a@b", "\xc3\xa4", "a\n"})
        CHECK_FALSE(oci::is_tag(tag));
    CHECK_FALSE(oci::is_tag(std::string(129, 't')));
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const auto report = store.export_image(image_at(temporary / "image", "a b"), everything);
    CHECK(report.status().error_number == EINVAL);
    CHECK_FALSE(fs::exists(temporary / "image"));
}

TEST_CASE("an image replaces an empty directory or an image, and nothing else", "[oci]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const std::string image = temporary / "image";
    // It is refused, with words that name what is in the way, and all of it stays.
    const auto is_refused = [&](std::string_view words) {
        const Tree before = tree_of(temporary.path());
        const Status status = export_to(store, image).status();
        CHECK(status.error_number == EEXIST);
        CHECK(status.path == image);
        INFO(status.message);
        CHECK(status.message.find(words) != std::string::npos);
        CHECK(status.message.find("left alone") != std::string::npos);
        CHECK(tree_of(temporary.path()) == before);
    };
    SECTION("an empty directory") {
        fs::create_directory(image);
        exported(store, image);
        read_image(image);
    }
    SECTION("an older image with another tag") {
        REQUIRE(store.export_image(image_at(image, "older"),
                                   [](const ListedEntry& entry) { return entry.key == kThirdKey; }));
        exported(store, image);
        CHECK(read_image(image).config.at("config").at("Labels").at("io.attnsmith.entries") == "3");
        CHECK(count_files(temporary / "cache") + 5 == count_files(temporary.path()));
    }
    SECTION("a file") {
        write_text(image, "text");
        is_refused("something else than a directory");
    }
    SECTION("a link to an image") {
        exported(store, temporary / "elsewhere");
        fs::create_symlink("elsewhere", image);
        is_refused("something else than a directory");
    }
    SECTION("a directory with a file") {
        write_text(image + "/notes.txt", "text");
        is_refused("\"notes.txt\"");
    }
    SECTION("a directory with a directory") {
        fs::create_directories(image + "/blobs/sha256");
        is_refused("no index.json");
    }
    SECTION("an image, and a file beside it") {
        exported(store, image);
        write_text(image + "/notes.txt", "text");
        is_refused("\"notes.txt\"");
    }
    SECTION("an image, and a blob that it does not name") {
        exported(store, image);
        const std::string blob = "blobs/sha256/" + std::string(64, '0');
        write_text(image + "/" + blob, "text");
        is_refused(fmt::format("\"{}\"", blob));
    }
    SECTION("an image, and blobs of another kind") {
        exported(store, image);
        write_text(image + "/blobs/sha512/0", "text");
        is_refused("\"blobs/sha512\"");
    }
    SECTION("an image that lacks a blob") {
        const ImageReport report = exported(store, image);
        fs::remove(image + "/" + oci::blob_path(report.manifest));
        is_refused("names a manifest that is not there");
    }
    SECTION("an image whose index names another one as well, as programs add them") {
        exported(store, image);
        Json index = Json::parse(read_text(image + "/index.json"));
        index["manifests"].push_back(index["manifests"][0]);
        write_text(image + "/index.json", index.dump());
        is_refused("\"index.json\"");
    }
    SECTION("somebody else's image") {
        exported(store, image);
        Json index = Json::parse(read_text(image + "/index.json"));
        index.erase("annotations");
        write_text(image + "/index.json", index.dump());
        is_refused("\"index.json\"");
    }
    SECTION("an index that is no JSON, or other JSON") {
        for (const char* text :
             {"", "{", "[]", "null", R"({"annotations": 1})",
              R"({"annotations": {"io.attnsmith.schema": "attnsmith.image/1"}, "manifests": [7]})"}) {
            fs::remove_all(image);
            exported(store, image);
            write_text(image + "/index.json", text);
            is_refused("\"index.json\"");
        }
    }
    SECTION("a layout of another version") {
        exported(store, image);
        write_text(image + "/oci-layout", R"({"imageLayoutVersion":"2.0.0"})");
        is_refused("\"oci-layout\"");
    }
    SECTION("no name of its own") {
        for (const char* name : {".", "..", "/", "folder/..", ""})
            CHECK(export_to(store, name).status().error_number == EISDIR);
    }
    SECTION("in a directory that is not there") {
        CHECK(export_to(store, temporary / "no/image").status().error_number == ENOENT);
    }
}

TEST_CASE("an image that fails at any operation leaves what was there, and nothing beside it", "[oci]") {
    const TemporaryDirectory temporary;
    FaultyFileSystem files;
    const Store store({.directory = temporary / "cache", .file_system = &files});
    fill(store);
    const std::string image = temporary / "out/image";
    fs::create_directory(temporary / "out");
    const auto only_third = [](const ListedEntry& entry) { return entry.key == kThirdKey; };
    const auto make_old = [&] {
        fs::remove_all(temporary / "out");
        fs::create_directory(temporary / "out");
        REQUIRE(store.export_image(image_at(image), only_third));
    };
    // Where names cannot be exchanged, the old image is moved aside.
    const bool can_exchange = GENERATE(true, false);
    const auto refuses_exchange = [&](Operation operation) {
        return !can_exchange && operation == Operation::exchange ? EINVAL : 0;
    };
    make_old();
    const Tree old_image = tree_of(image);
    files.most_bytes_per_write = 500;
    files.most_bytes_per_read = 500;
    files.fault = refuses_exchange;
    files.reset_counts();
    exported(store, image);
    const Tree new_image = tree_of(image);
    CHECK(new_image != old_image);
    const std::size_t operations = files.count_all();
    REQUIRE(operations > 60);
    for (std::size_t n = 0; n < operations; ++n) {
        files.heal();
        make_old();
        std::size_t left = n;
        files.fault = [&](Operation operation) { return left-- == 0 ? EIO : refuses_exchange(operation); };
        const auto report = export_to(store, image);
        files.heal();
        const Tree there = tree_of(image);
        INFO("operation " << n << ": " << report.status().to_string());
        // A failed read leaves entries out and says so; a listing that fails names fewer.
        if (report && report->entries == 3) CHECK(there == new_image);
        const bool in_its_place = there != old_image;
        if (!report && in_its_place) CHECK(there == new_image);
        const bool told = report.status().message.find("the old one was not removed") != std::string::npos;
        const auto beside =
            std::distance(fs::directory_iterator(temporary / "out"), fs::directory_iterator());
        CHECK((beside == 1 || told || report.status().error_number == EIO));
        if (beside != 1 && !told) CHECK(in_its_place);  // the directory could not be synced, and so not go on
        read_image(image);
    }
}

TEST_CASE("an image beside who clears has what was still there", "[oci]") {
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
            fs::remove(temporary / ("cache/" + layout::entry_path({Digest(--left << 56, 1), kVersion})));
        }
        return 0;
    };
    const ImageReport report = exported(store, temporary / "image");
    CHECK(report.bad.empty());
    CHECK(report.entries < kEntries);
    CHECK(report.entries > 0);
    const Image image = read_image(temporary / "image");
    CHECK(members_of(image.layer).size() == 3 + 2 * report.entries);
    CHECK(image.config.at("config").at("Labels").at("io.attnsmith.entries") ==
          fmt::to_string(report.entries));
}

TEST_CASE("an image that is killed is whole under its name, or what was there is", "[oci]") {
    const TemporaryDirectory temporary;
    fs::create_directory(temporary / "out");
    const std::string image = temporary / "out/image";
    const Store store({.directory = temporary / "cache"});
    fill(store);
    exported(store, temporary / "whole");
    const Tree whole = tree_of(temporary / "whole");
    KillTimes times(7);
    int appeared = 0;
    for (int kill = 0; kill < 60; ++kill) {
        ChildProcess child([&] {
            while (export_to(store, image)) continue;
            return 1;
        });
        times.wait();
        CHECK(child.kill() == -SIGKILL);
        if (!fs::exists(image)) {
            times.was_too_early();
            continue;
        }
        ++appeared;
        CHECK(tree_of(image) == whole);
        if (kill % 2 == 0) fs::remove_all(image);
    }
    CHECK(appeared > 0);
    // What is left beside it goes an hour later, with an export of that name.
    const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::minutes(61);
    for (const auto& found : fs::recursive_directory_iterator(temporary / "out")) {
        fs::last_write_time(found.path(), an_hour_ago);
    }
    write_text(temporary / "out/image.0123456789abcdef.partial",
               "a bundle's, which goes with exports of bundles");
    exported(store, image);
    CHECK(tree_of(image) == whole);
    CHECK(std::distance(fs::directory_iterator(temporary / "out"), fs::directory_iterator()) == 2);
}

TEST_CASE("what killed images left goes an hour later with an export of any name", "[oci]") {
    const TemporaryDirectory temporary;
    fs::create_directory(temporary / "out");
    const Store store({.directory = temporary / "cache"});
    fill(store);
    const auto folders = [&] {
        int found = 0;
        for (const auto& one : fs::directory_iterator(temporary / "out")) found += one.is_directory() ? 1 : 0;
        return found;
    };
    const auto leave_some = [&] {
        KillTimes times(7);
        while (folders() < 3) {
            const std::string name = fmt::format("out/killed-{}", folders());
            ChildProcess child([&] {
                while (export_to(store, temporary / name)) fs::remove_all(temporary / name);
                return 1;
            });
            times.wait();
            CHECK(child.kill() == -SIGKILL);
            fs::remove_all(temporary / name);
        }
    };
    const auto age = [&] {
        const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::minutes(61);
        std::vector<fs::path> all;
        for (const auto& found : fs::recursive_directory_iterator(temporary / "out"))
            all.push_back(found.path());
        for (const fs::path& path : all) fs::last_write_time(path, an_hour_ago);
    };
    for (const bool as_bundle : {false, true}) {
        leave_some();
        const auto export_another = [&] {
            const std::string name = temporary / "out/another";
            if (as_bundle)
                REQUIRE(store.export_bundle(name, [](const ListedEntry&) { return true; }).ok());
            else
                exported(store, name);
            fs::remove_all(name);
        };
        export_another();
        CHECK(folders() == 3);  // they may be alive
        age();
        export_another();
        CHECK(folders() == 0);
    }
    // What holds more than an image is not an export's.
    for (const std::string other :
         {"out/mine.0123456789abcdef.partial/index.json", "out/mine.0123456789abcdef.partial/mine",
          "out/mine.partial/index.json", "out/mine.0123456789abcdef.partials/index.json"})
        write_text(temporary / other, "");
    age();
    exported(store, temporary / "out/image");
    CHECK(folders() == 4);
    CHECK(fs::exists(temporary / "out/mine.0123456789abcdef.partial/index.json"));
}

TEST_CASE("of two images that are written to one place at a time, one is there", "[oci]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    fill(store);
    exported(store, temporary / "image");
    const Tree whole = tree_of(temporary / "image");
    std::atomic<int> failed{0};
    {
        std::array<std::jthread, 4> threads;
        for (auto& thread : threads) {
            thread = std::jthread([&] {
                for (int i = 0; i < 8; ++i) failed += export_to(store, temporary / "image") ? 0 : 1;
            });
        }
    }
    // An image that vanishes while it is looked at is none for that look; nothing was lost over it.
    INFO(failed << " were refused");
    CHECK(tree_of(temporary / "image") == whole);
    CHECK(count_files(temporary / "cache") + 5 == count_files(temporary.path()));
}

}  // namespace attnsmith::cache
