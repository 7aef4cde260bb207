#include "cache/files/file_system.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <limits>

#include "cache/files/posix_file.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using testing::bytes_of;
using testing::FaultyFileSystem;
using testing::Operation;
using testing::read_text;
using testing::TemporaryDirectory;
using testing::write_text;

namespace {

struct Tree {
    TemporaryDirectory directory;
    FileSystem& files = posix_file_system();

    Path at(std::string relative) const { return {directory.path().string(), std::move(relative)}; }
};

}  // namespace

TEST_CASE("FileSystem: what is written is read", "[cache][file_system]") {
    Tree tree;
    REQUIRE(tree.files.make_directory(tree.at("sub"), 0700).ok());
    {
        auto file = tree.files.create_exclusively(tree.at("sub/file"), 0600);
        REQUIRE(file);
        REQUIRE(write_fully(**file, bytes_of("hello")).ok());
        REQUIRE((*file)->sync().ok());
        REQUIRE((*file)->close().ok());
        REQUIRE((*file)->close().ok());
    }
    auto file = tree.files.open_for_reading(tree.at("sub/file"));
    REQUIRE(file);
    std::vector<std::byte> buffer(100);
    const auto size = read_fully(**file, buffer);
    REQUIRE(size);
    buffer.resize(*size);
    CHECK(buffer == bytes_of("hello"));
    CHECK((*file)->stat()->bytes == 5);
    CHECK((*file)->stat()->mode == 0600);
    CHECK((*file)->stat()->same_file(*tree.files.stat(tree.at("sub/file"))));
    CHECK_FALSE((*file)->stat()->same_file(*tree.files.stat(tree.at("sub"))));
}

TEST_CASE("FileSystem: short writes and reads are carried on", "[cache][file_system]") {
    Tree tree;
    FaultyFileSystem files;
    files.most_bytes_per_write = 2;
    files.most_bytes_per_read = 3;
    {
        auto file = files.create_exclusively(tree.at("file"), 0600);
        REQUIRE(file);
        REQUIRE(write_fully(**file, bytes_of("hello")).ok());
    }
    CHECK(files.count(Operation::file_write) == 3);
    auto file = files.open_for_reading(tree.at("file"));
    std::vector<std::byte> buffer(5);
    CHECK(*read_fully(**file, buffer) == 5);
    CHECK(buffer == bytes_of("hello"));
    CHECK(files.count(Operation::file_read) == 2);
}

TEST_CASE("FileSystem: a write that takes nothing fails instead of turning for ever",
          "[cache][file_system]") {
    Tree tree;
    FaultyFileSystem files;
    files.most_bytes_per_write = 0;
    auto file = files.create_exclusively(tree.at("file"), 0600);
    CHECK(write_fully(**file, bytes_of("hello")).recoverable());
}

TEST_CASE("FileSystem: failures say errno, path and what was tried", "[cache][file_system]") {
    Tree tree;
    const Status status = tree.files.open_for_reading(tree.at("missing")).status();
    CHECK(status.recoverable());
    CHECK(status.error_number == ENOENT);
    CHECK(status.path == tree.directory / "missing");
    CHECK(status.to_string() == "cannot open: No such file or directory: " + tree.directory / "missing");
}

TEST_CASE("FileSystem: nothing of that name may exist when a file is created", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "file", "old");
    std::filesystem::create_symlink(tree.directory / "nowhere", tree.directory / "link");
    CHECK(tree.files.create_exclusively(tree.at("file"), 0600).status().error_number == EEXIST);
    CHECK(tree.files.create_exclusively(tree.at("link"), 0600).status().error_number == EEXIST);
    CHECK(read_text(tree.directory / "file") == "old");
}

TEST_CASE("FileSystem: directories are exchanged, replaced and removed", "[cache][file_system][oci]") {
    Tree tree;
    REQUIRE(tree.files.make_directory(tree.at("one"), 0700).ok());
    REQUIRE(tree.files.make_directory(tree.at("two"), 0700).ok());
    write_text(tree.at("one/file").full(), "first");
    write_text(tree.at("two/file").full(), "second");
    const Status exchanged = tree.files.exchange(tree.at("one"), tree.at("two"));
    if (exchanged.error_number == EINVAL || exchanged.error_number == ENOSYS) {
        WARN("names cannot be exchanged on this file system");
        return;
    }
    REQUIRE(exchanged.ok());
    CHECK(read_text(tree.at("one/file").full()) == "second");
    CHECK(read_text(tree.at("two/file").full()) == "first");
    CHECK(tree.files.exchange(tree.at("one"), tree.at("missing")).error_number == ENOENT);
    // Only what is empty is replaced or removed.
    CHECK_FALSE(tree.files.rename(tree.at("one"), tree.at("two")).ok());
    CHECK_FALSE(tree.files.remove_directory(tree.at("two")).ok());
    REQUIRE(tree.files.remove_file(tree.at("two/file")).ok());
    CHECK(tree.files.rename(tree.at("one"), tree.at("two")).ok());
    CHECK(read_text(tree.at("two/file").full()) == "second");
    CHECK(tree.files.remove_directory(tree.at("two/file")).error_number == ENOTDIR);
    REQUIRE(tree.files.remove_file(tree.at("two/file")).ok());
    CHECK(tree.files.remove_directory(tree.at("two")).ok());
    CHECK(tree.files.remove_directory(tree.at("two")).error_number == ENOENT);
}

TEST_CASE("FileSystem: symbolic links are followed nowhere below the root", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "outside/file", "secret");
    const Path inside{tree.directory / "root", {}};
    REQUIRE(tree.files.make_directory(inside, 0700).ok());
    std::filesystem::create_symlink(tree.directory / "outside", tree.directory / "root/directory");
    std::filesystem::create_symlink(tree.directory / "outside/file", tree.directory / "root/file");
    const auto at = [&](const char* relative) { return Path{inside.root, relative}; };

    CHECK(tree.files.open_for_reading(at("file")).status().error_number == ELOOP);
    CHECK(tree.files.open_lock_file(at("file"), 0600).status().error_number == ELOOP);
    CHECK_FALSE(tree.files.open_for_reading(at("directory/file")));
    CHECK_FALSE(tree.files.create_exclusively(at("directory/new"), 0600));
    CHECK_FALSE(tree.files.open_lock_file(at("directory/new"), 0600));
    CHECK_FALSE(tree.files.list_names(at("directory")));
    CHECK_FALSE(tree.files.list_files(at("directory")));
    CHECK_FALSE(tree.files.stat(at("directory/file")));
    CHECK_FALSE(tree.files.make_directory(at("directory"), 0700).ok());
    CHECK_FALSE(tree.files.make_directory(at("directory/new"), 0700).ok());
    CHECK_FALSE(tree.files.remove_file(at("directory/file")).ok());
    CHECK_FALSE(tree.files.sync_directory(at("directory")).ok());
    write_text(tree.directory / "root/mine", "mine");
    CHECK_FALSE(tree.files.rename(at("mine"), at("directory/mine")).ok());
    CHECK_FALSE(tree.files.rename(at("directory/file"), at("theirs")).ok());
    CHECK(tree.files.stat(at("file"))->kind == FileKind::symbolic_link);
    CHECK(testing::count_files(tree.directory / "outside") == 1);
}

TEST_CASE("FileSystem: the root itself may be a symbolic link", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "real/file", "text");
    std::filesystem::create_directory_symlink(tree.directory / "real", tree.directory / "link");
    const std::string root = tree.directory / "link";
    CHECK(tree.files.open_for_reading({root, "file"}));
    CHECK(tree.files.list_names({root, {}}).value() == std::vector<std::string>{"file"});
    CHECK(tree.files.make_directory({root, {}}, 0700).ok());
    CHECK(tree.files.stat({root, {}})->kind == FileKind::directory);
}

TEST_CASE("FileSystem: paths cannot climb out of the root", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "secret", "secret");
    REQUIRE(tree.files.make_directory(tree.at("root/sub"), 0700).error_number == ENOENT);
    REQUIRE(tree.files.make_directory(tree.at("root"), 0700).ok());
    const std::string root = tree.directory / "root";
    for (const char* relative :
         {"../secret", "..", ".", "./secret", "sub/../../secret", "//secret", "secret/"}) {
        INFO(relative);
        CHECK_FALSE(tree.files.open_for_reading({root, relative}));
        CHECK_FALSE(tree.files.create_exclusively({root, relative}, 0600));
    }
}

TEST_CASE("FileSystem: a FIFO in a file's place does not block a reader", "[cache][file_system]") {
    Tree tree;
    REQUIRE(::mkfifo((tree.directory / "fifo").c_str(), 0600) == 0);
    const auto file = tree.files.open_for_reading(tree.at("fifo"));
    REQUIRE(file);
    CHECK((*file)->stat()->kind == FileKind::other);
}

TEST_CASE("FileSystem: a root is made with its parents, and making it again is no error",
          "[cache][file_system]") {
    Tree tree;
    const Path deep{tree.directory / "a/b/c", {}};
    CHECK(tree.files.make_directory(deep, 0700).ok());
    CHECK(tree.files.make_directory(deep, 0700).ok());
    CHECK(tree.files.stat(deep)->mode == 0700);
    CHECK(tree.files.stat(tree.at("a"))->mode == 0700);
}

TEST_CASE("FileSystem: a file where a directory should be is an error", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "file", "");
    CHECK(tree.files.make_directory({tree.directory / "file", {}}, 0700).error_number == ENOTDIR);
    CHECK(tree.files.make_directory({tree.directory / "file/below", {}}, 0700).error_number == ENOTDIR);
    CHECK(tree.files.make_directory(tree.at("file"), 0700).error_number == ENOTDIR);
}

TEST_CASE("FileSystem: writability is judged at the nearest directory that exists", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "file", "");
    CHECK(tree.files.check_writable(tree.at("")).ok());
    CHECK(tree.files.check_writable({tree.directory / "not/yet/there", {}}).ok());
    CHECK(tree.files.check_writable({tree.directory / "file", {}}).error_number == ENOTDIR);
    CHECK(tree.files.check_writable({tree.directory / "file/below", {}}).error_number == ENOTDIR);
    CHECK(tree.files.check_writable({tree.directory / "file/below", {}}).path ==
          tree.directory / "file/below");
    // A link to nothing stands where the directory would have to be made.
    std::filesystem::create_symlink(tree.directory / "nothing", tree.directory / "dangling");
    CHECK_FALSE(tree.files.check_writable({tree.directory / "dangling", {}}).ok());
    CHECK_FALSE(tree.files.check_writable({tree.directory / "dangling/below", {}}).ok());
    std::filesystem::create_directory(tree.directory / "nothing");
    CHECK(tree.files.check_writable({tree.directory / "dangling/below", {}}).ok());
}

TEST_CASE("FileSystem: a working directory that was removed is named as the reason", "[cache][file_system]") {
    const TemporaryDirectory temporary;
    testing::ChildProcess child([&] {
        std::filesystem::create_directory(temporary / "gone");
        std::filesystem::current_path(temporary / "gone");
        std::filesystem::remove(temporary / "gone");
        FileSystem& files = posix_file_system();
        for (const char* name : {"kernels", "kernels/below", "."}) {
            const Status status = files.check_writable({name, {}});
            if (status.to_string().find("the working directory was removed") == std::string::npos) return 1;
        }
        return files.check_writable({temporary.path().string(), {}}).ok() ? 0 : 2;
    });
    CHECK(child.wait() == 0);
}

TEST_CASE("FileSystem: a listing tells kinds and sizes", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "file", "12345");
    std::filesystem::create_directory(tree.directory / "sub");
    std::filesystem::create_symlink("file", tree.directory / "link");
    auto listed = tree.files.list_files(tree.at(""));
    REQUIRE(listed);
    std::ranges::sort(listed->files, {}, &NamedFile::name);
    REQUIRE(listed->files.size() == 3);
    CHECK(listed->files.at(0).name == "file");
    CHECK(listed->files.at(0).info.kind == FileKind::regular);
    CHECK(listed->files.at(0).info.bytes == 5);
    CHECK(listed->files.at(1).info.kind == FileKind::symbolic_link);
    CHECK(listed->files.at(2).info.kind == FileKind::directory);
    CHECK(tree.files.list_files(tree.at("missing")).status().error_number == ENOENT);
}

TEST_CASE("FileSystem: a listing tells of files that it may not look at", "[cache][file_system]") {
    Tree tree;
    write_text(tree.directory / "closed/a", "1");
    write_text(tree.directory / "closed/b", "2");
    // Its names may be read, and nothing else. File modes hold for nobody, not for root.
    const std::string closed = tree.directory / "closed";
    REQUIRE(::chmod(closed.c_str(), 0644) == 0);
    REQUIRE(::chmod(tree.directory.path().c_str(), 0755) == 0);
    testing::ChildProcess child([&] {
        if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return 10;
        const auto listed = tree.files.list_files(tree.at("closed"));
        if (!listed) return 11;
        if (tree.files.list_names(tree.at("closed"))->size() != 2) return 12;
        if (!listed->files.empty() || listed->unreadable.error_number != EACCES) return 13;
        return listed->unreadable.path.starts_with(closed + "/") ? 0 : 14;
    });
    CHECK(child.wait() == 0);
    ::chmod(closed.c_str(), 0755);
    CHECK(tree.files.list_files(tree.at("closed"))->unreadable.ok());
}

TEST_CASE("FileSystem: a write past the size that files may have fails, and raises no signal",
          "[cache][file_system]") {
    Tree tree;
    constexpr ::rlim_t kMostBytes = 1000;
    static volatile std::sig_atomic_t handled = 0;
    const auto handler = GENERATE(
        SIG_DFL, SIG_IGN, +[](int) { handled = handled + 1; });
    testing::ChildProcess child([&] {
        const ::rlimit limit{kMostBytes, kMostBytes};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
        std::signal(SIGXFSZ, handler);
        auto file = tree.files.create_exclusively(tree.at("file"), 0600);
        if (!file) return 11;
        const std::vector<std::byte> bytes(kMostBytes + 1);
        if (write_fully(**file, bytes).error_number != EFBIG) return 12;
        if ((*file)->write_at(bytes, kMostBytes).status().error_number != EFBIG) return 13;
        // The host's own is still the host's, and one that it has blocked and that waits is not taken away.
        ::sigset_t waiting, mask;
        if (::sigpending(&waiting) != 0 || ::sigismember(&waiting, SIGXFSZ) != 0) return 14;
        if (::pthread_sigmask(SIG_BLOCK, nullptr, &mask) != 0 || ::sigismember(&mask, SIGXFSZ) != 0)
            return 15;
        if (handled != 0) return 16;
        ::sigaddset(&mask, SIGXFSZ);
        ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
        ::raise(SIGXFSZ);
        if (write_fully(**file, bytes).error_number != EFBIG) return 17;
        return ::sigpending(&waiting) == 0 && ::sigismember(&waiting, SIGXFSZ) == 1 ? 0 : 18;
    });
    CHECK(child.wait() == 0);
}

TEST_CASE("FileSystem: times of any year have their order and differences", "[cache][file_system]") {
    using namespace std::chrono_literals;
    constexpr std::int64_t kYear = 31556952, kFar = 100'000'000'000 * kYear / 1000;  // 10^8 years
    const FileTime now = std::chrono::system_clock::now();
    const FileTime earliest = file_time_of(std::numeric_limits<std::int64_t>::min(), 999999999);
    const FileTime latest = file_time_of(std::numeric_limits<std::int64_t>::max(), 999999999);
    CHECK(file_time_of(-kFar, 5) == earliest);
    CHECK(file_time_of(kFar, 5) == latest);
    CHECK(earliest < now);
    CHECK(now < latest);
    CHECK(latest - earliest > 24h * 365 * 290);
    CHECK(now - earliest > 24h * 365 * 150);
    CHECK(latest - now > 24h * 365 * 50);
    CHECK(file_time_of(1'700'000'000, 7).time_since_epoch() == 1'700'000'000s + 7ns);
    CHECK(file_time_of(-5, 1).time_since_epoch() == -5s + 1ns);
    struct ::stat found {};
    found.st_mtim.tv_sec = kFar;
    CHECK(file_info_of(found).modified == latest);
    found.st_mtim.tv_sec = -kFar;
    CHECK(file_info_of(found).modified == earliest);
}

TEST_CASE("FileSystem: where nothing can be made is not writable, whoever asks", "[cache][file_system]") {
    FileSystem& files = posix_file_system();
    for (const char* place : {"/proc/none", "/proc/none/below", "/proc", "/proc/self/fd/none"}) {
        INFO(place);
        CHECK_FALSE(files.check_writable({place, {}}).ok());
        CHECK_FALSE(files.make_directory({std::string(place) + "/sub", {}}, 0700).ok());
    }
    // Asking leaves nothing.
    Tree tree;
    CHECK(files.check_writable(tree.at("")).ok());
    CHECK(std::filesystem::is_empty(tree.directory.path()));
}

TEST_CASE("Status: misuse of descriptors is fatal, the state of the world is not", "[cache][file_system]") {
    for (const int error_number :
         {ENOSPC, EDQUOT, EROFS, EACCES, EPERM, EIO, EMFILE, ENFILE, ESTALE, ENOENT, ELOOP}) {
        CHECK(Status::from_errno(error_number, "write", "path").recoverable());
    }
    CHECK(Status::from_errno(EBADF, "write", "path").fatal());
    CHECK(Status::success().ok());
    CHECK(Status::success().to_string() == "ok");
}

}  // namespace attnsmith::cache
