// The directory of an image layout: what may be replaced, and writing one aside until it is whole. Internal
// to cache/.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "cache/files/file_system.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/files/status.hpp"
#include "cache/image/oci.hpp"

namespace attnsmith::cache {

// What has the name that an image's directory is to have.
enum class Occupant { nothing, empty_directory, image };

// Fails with EEXIST for anything else than an image that this code wrote, naming what is in the way; or with
// what the system said. An image that another program added anything to is not ours any more.
Result<Occupant> find_occupant(FileSystem& files, const Path& target);

// Removes images that killed exports left in the directory, under partial names of anything: a folder shows
// by its contents that an export made it. One whose blob was written to lately or that has a name which no
// export gives stays. What cannot be removed stays for the next export.
void remove_abandoned_images(FileSystem& files, const std::string& directory, FileTime now);

// A layout that is written beside its place, so that a kill leaves nothing under its name. Removes itself
// unless it was moved.
class StagedLayout {
  public:
    // Also removes what killed exports left an hour ago (remove_stale_partials, remove_abandoned_images).
    static Result<StagedLayout> create(FileSystem& files, const Path& target);

    StagedLayout(StagedLayout&& other) noexcept
        : files_(std::exchange(other.files_, nullptr)),
          target_(std::move(other.target_)),
          aside_(std::move(other.aside_)) {}
    StagedLayout& operator=(StagedLayout&&) = delete;
    ~StagedLayout();

    // A blob whose digest is not known yet, one at a time.
    Result<StagedFile> create_blob() const;
    // Syncs it.
    Status name_blob(StagedFile staged, const Sha256Digest& sha256) const;
    Result<oci::Blob> write_blob(std::string_view text) const;
    Status write(std::string_view name, std::string_view text) const;

    // Gives the whole of it the target's name: at once, where nothing or an empty directory has that name,
    // and where the file system can exchange names; else the image that was there is moved aside first, and
    // for a moment there is none. What was there is removed then; where that fails, the new image is in its
    // place nevertheless, which the status says. REQUIRES: all is written.
    Status move_to_target();

  private:
    StagedLayout(FileSystem& files, Path target, std::string aside)
        : files_(&files), target_(std::move(target)), aside_(std::move(aside)) {}

    Path in_aside(std::string_view name) const;
    Status sync() const;
    Status replace_image();
    Status replace_by_two_renames(const Path& old);

    FileSystem* files_;  // null once there is nothing to remove
    Path target_;
    std::string aside_;  // a name in the target's directory
};

}  // namespace attnsmith::cache
