#include "cache/signing/key_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "cache/files/named_file.hpp"
#include "cache/files/partial_file.hpp"
#include "cache/signing/key_text.hpp"
#include "cache/signing/secrets.hpp"
#include "cache/signing/system_ed25519.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::uint32_t kOthersBits = 077;
constexpr std::uint32_t kSecretMode = 0600;
constexpr std::uint32_t kPublicMode = 0644;

Status at(const std::string& file, Status status) {
    status.path = file;
    return status;
}

Status is_there(const Path& path) {
    return Status::recoverable_error(
        EEXIST, path.full(),
        "there is something of that name already, and keys replace nothing: name another file, or move it "
        "away");
}

// Success where there is nothing of that name, so that most of what is refused is so before a key is made.
Status check_free(FileSystem& files, const Path& path) {
    const Result<FileInfo> found = files.stat(path);
    if (found) return is_there(path);
    return found.status().error_number == ENOENT ? Status::success() : found.status();
}

// With what the umask leaves of 0644. A file system makes one with what it leaves of 0666, or with a mode
// that it is told: where the umask lets others write, a second one is made with the first one's mode.
Result<StagedFile> create_public_partial(FileSystem& files, const Path& target) {
    Result<StagedFile> first = create_partial(files, target, std::nullopt);
    if (!first) return first;
    const Result<FileInfo> info = files.stat(first->path());
    if (!info) return info.status();
    if ((info->mode & ~kPublicMode) == 0) return first;
    return create_partial(files, target, info->mode & kPublicMode);
}

Status fill(StagedFile& staged, const std::string& text) {
    if (Status status = staged.append(std::as_bytes(std::span(text))); !status.ok()) return status;
    return staged.finish();
}

Status move(StagedFile& staged, const Path& target) {
    Status moved = staged.move_to_if_free(target);
    return moved.error_number == EEXIST ? is_there(target) : moved;
}

// Both, or neither with the status that says why.
Status move_both(FileSystem& files, StagedFile& staged_public, const Path& public_path,
                 StagedFile& staged_secret, const Path& secret_path) {
    // The secret one comes last: who is killed in between leaves a public key that nothing was signed with,
    // and no secret that nobody knows of.
    if (Status moved = move(staged_public, public_path); !moved.ok()) return moved;
    Status status = move(staged_secret, secret_path);
    const bool both = status.ok();
    if (both) status = files.sync_directory({secret_path.root, {}});
    if (status.ok()) return status;
    static_cast<void>(files.remove_file(public_path));
    if (both) static_cast<void>(files.remove_file(secret_path));
    return status;
}

}  // namespace

Result<SecretKey> read_secret_key(FileSystem& files, const std::string& file) {
    FileInfo info;
    SecretText text;
    if (Status read = read_named_file(files, file, kMaxKeyBytes, text.get(), &info); !read.ok()) return read;
    // First whether it is one: who names the public key by mistake is not to be told to chmod it.
    Result<SecretKey> key = parse_secret_key(text.get());
    if (!key) return at(file, key.status());
    if ((info.mode & kOthersBits) == 0) return key;
    return Status::recoverable_error(
        EPERM, file,
        fmt::format("others may use the secret key (mode {:04o}); if none has, run: chmod 600 {}", info.mode,
                    file));
}

Result<PublicKey> read_public_key(FileSystem& files, const std::string& file) {
    // One that is mixed up with a secret key's file is overwritten, too.
    SecretText text;
    if (Status read = read_named_file(files, file, kMaxKeyBytes, text.get()); !read.ok()) return read;
    Result<PublicKey> key = parse_public_key(text.get());
    return key ? key : at(file, key.status());
}

Result<PublicKey> write_new_keys(FileSystem& files, const Ed25519& ed25519, const std::string& file) {
    if (file.ends_with(kPublicKeyEnding)) {
        return Status::recoverable_error(
            EINVAL, file, "the public key's name ends so: name the secret key's file, without .pub");
    }
    const Result<Path> secret_path = named_file(file);
    if (!secret_path) return secret_path.status();
    const Path public_path{secret_path->root, secret_path->relative + kPublicKeyEnding};
    for (const Path* const path : {&*secret_path, &public_path}) {
        if (Status free = check_free(files, *path); !free.ok()) return free;
    }
    const Result<SecretKey> secret = ed25519.generate();
    if (!secret) return secret.status();
    const Result<PublicKey> known = ed25519.public_key_of(*secret);
    if (!known) return known;

    Result<StagedFile> staged_public = create_public_partial(files, public_path);
    if (!staged_public) return staged_public.status();
    Result<StagedFile> staged_secret = create_partial(files, *secret_path, kSecretMode);
    if (!staged_secret) return staged_secret.status();
    const SecretText text(encode(*secret));
    if (Status filled = fill(*staged_public, encode(*known)); !filled.ok()) return filled;
    if (Status filled = fill(*staged_secret, text.get()); !filled.ok()) return filled;
    Status moved = move_both(files, *staged_public, public_path, *staged_secret, *secret_path);
    if (!moved.ok()) return moved;
    return known;
}

Result<SecretKey> read_secret_key(const std::string& file) {
    return read_secret_key(posix_file_system(), file);
}

Result<PublicKey> read_public_key(const std::string& file) {
    return read_public_key(posix_file_system(), file);
}

Result<PublicKey> write_new_keys(const std::string& file) {
    const Result<const Ed25519*> opened = ed25519();
    if (!opened) return opened.status();
    return write_new_keys(posix_file_system(), **opened, file);
}

}  // namespace attnsmith::cache
