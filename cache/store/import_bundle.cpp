// Store's import of a bundle. Entries are written, synced and put in their places many at a time: a sync
// costs as much for one file as for thousands.
#include <fmt/format.h>

#include <cerrno>
#include <span>
#include <utility>
#include <vector>

#include "cache/bundle/bundle.hpp"
#include "cache/bundle/signature.hpp"
#include "cache/entries/judged_entry.hpp"
#include "cache/entries/layer.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::cache {
namespace {

// What a batch may hold: enough that its two syncs do not count, and little enough that the limit is kept
// between batches.
constexpr std::size_t kMostEntriesAtOnce = 4096;
constexpr std::uint64_t kMostBytesAtOnce = std::uint64_t{256} << 20;

}  // namespace

struct Store::ImportBatch {
    struct Staged {
        const BundledEntry* entry;
        StagedFile file;
    };
    std::vector<Staged> staged;
    std::uint64_t bytes = 0;

    bool is_full() const { return staged.size() >= kMostEntriesAtOnce || bytes >= kMostBytesAtOnce; }
};

Result<ImportReport> Store::import_bundle(const std::string& file) const {
    if (options_.directory.empty()) return no_cache_directory();
    if (Status trusted = judge(kWritableLayer); !trusted.ok()) return trusted;  // the caller tells
    const Result<Bundle> bundle = Bundle::open(files_, file);
    if (!bundle) return bundle.status();

    ImportReport report{.file = file, .entries = bundle->entries().size(), .signed_by = {}};
    if (!options_.trusted_keys.empty()) {
        const Result<PublicKey> signer = find_signer(files_, *bundle, options_.trusted_keys);
        if (!signer) return signer.status();
        report.signed_by = signer->id();
    }
    if (Status verified = bundle->verify(options_.check_content); !verified.ok()) return verified;
    Status status = import_entries(*bundle, report);
    if (status.ok()) return report;
    status.message = fmt::format("{} (after {} of {} entries)", status.message,
                                 report.present + report.published, report.entries);
    return status;
}

Status Store::import_entries(const Bundle& bundle, ImportReport& report) const {
    ImportBatch batch;
    for (const BundledEntry& entry : bundle.entries()) {
        // What is there and would not be used is no entry: it is replaced.
        const Verdict there =
            judge_entry(*layers_[kWritableLayer], entry.name, options_, Depth::content).verdict;
        if (there == Verdict::sound) {
            ++report.present;
            continue;
        }
        if (Status status = stage(bundle, entry, batch); !status.ok()) return status;
        if (!batch.is_full()) continue;
        if (Status status = publish_batch(bundle, batch, report); !status.ok()) return status;
    }
    return publish_batch(bundle, batch, report);
}

Status Store::stage(const Bundle& bundle, const BundledEntry& entry, ImportBatch& batch) const {
    // Once more: the file may have changed since.
    const Result<EntryFile> read = bundle.read_checked(entry);
    if (!read) return read.status();
    Result<StagedFile> staged = create_staged_file(entry.name.key);
    if (!staged) return staged.status();
    const std::span<const std::byte> bytes(read->bytes.get(), read->size);
    if (Status written = staged->append(bytes); !written.ok()) return written;
    if (Status closed = staged->finish_unsynced(); !closed.ok()) return closed;
    batch.staged.push_back({&entry, std::move(staged).value()});
    batch.bytes += entry.bytes;
    return Status::success();
}

// All bytes are on the disk before the first of them has an entry's name, and all names are before any is
// told of.
Status Store::publish_batch(const Bundle& bundle, ImportBatch& batch, ImportReport& report) const {
    if (batch.staged.empty()) return Status::success();
    const Path root{options_.directory, {}};
    if (Status synced = files_.sync_file_system(root); !synced.ok()) return synced;
    for (ImportBatch::Staged& one : batch.staged) {
        const layout::EntryName& name = one.entry->name;
        Status moved = move_into_shard(one.file, name).status();
        if (is_absence(moved)) {
            // Somebody took the staging file for a dead process's, or cleared them all.
            const Result<EntryFile> read = bundle.read_checked(*one.entry);
            if (!read) return read.status();
            moved = publish_bytes(name.key, name.version, std::span(read->bytes.get(), read->size));
        }
        if (!moved.ok()) return moved;
    }
    if (Status synced = files_.sync_file_system(root); !synced.ok()) return synced;
    for (const ImportBatch::Staged& one : batch.staged) {
        note_published(one.entry->name.key, one.entry->bytes);
        ++report.published;
        report.bytes += one.entry->bytes;
    }
    batch = {};
    return Status::success();
}

}  // namespace attnsmith::cache
