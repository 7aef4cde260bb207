// A place where entries lie: a directory or a bundle. Internal to cache/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/digest/digest.hpp"
#include "cache/entries/entry.hpp"
#include "cache/entries/entry_file.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

struct LayerSize {
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;
    std::uint64_t allocated_bytes = 0;  // of the disk
    std::vector<Status> unreadable;     // what the sums lack
};

// Thread-safe. Nothing here is checked but by who reads: see check_entry_file().
class Layer {
  public:
    virtual ~Layer() = default;

    // As the user named it.
    virtual const std::string& path() const = 0;
    // Where an entry of this name would lie.
    virtual std::string path_of(const layout::EntryName& name) const = 0;

    // The versions that there are, in no order.
    virtual Result<std::vector<Version>> versions_of(const Digest& key) const = 0;
    // Fails with ENOENT where there is no such entry, EBADMSG where it is not what was signed.
    virtual Result<EntryFile> read(const layout::EntryName& name) const = 0;
    virtual FoundEntries find_all() const = 0;
    // The size of what find_all() finds, in half of its time.
    virtual LayerSize measure() const = 0;
    // Whether a trusted key vouches for what read() gives, so that it does not matter who may write there.
    virtual bool is_signed() const { return false; }
    // Whether what lies around the entries is as it should be, too: a bundle's headers, digests and padding.
    virtual Status check_rest() const { return Status::success(); }
    // True if read() goes on when the path is gone: an open bundle is a file that stays.
    virtual bool outlives_path() const { return false; }
    // As it stands there; empty where an entry's is not to be found in the file's bytes.
    virtual Result<std::string> read_metadata(const layout::EntryName& name) const = 0;
};

}  // namespace attnsmith::cache
