// Any bytes as a bundle: what is taken whole is the one bundle of its entries.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "cache/bundle/bundle.hpp"
#include "cache/bundle/tar.hpp"
#include "fuzz/fuzz.hpp"

using namespace attnsmith::cache;

namespace {

Status refused() { return Status::recoverable_error(ENOSYS, {}, "not here"); }

class MemoryFile final : public File {
  public:
    explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

    Result<FileInfo> stat() override {
        return FileInfo{.kind = FileKind::regular, .bytes = bytes_.size(), .modified = {}};
    }
    Result<std::size_t> read_some_at(std::uint64_t offset, std::span<std::byte> buffer) override {
        if (offset >= bytes_.size()) return std::size_t{0};
        const std::size_t count = std::min(buffer.size(), bytes_.size() - offset);
        std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), count, buffer.begin());
        return count;
    }
    Result<std::size_t> read_some(std::span<std::byte>) override { return refused(); }
    Result<std::size_t> write_some(std::span<const std::byte>) override { return refused(); }
    Result<std::size_t> write_at(std::span<const std::byte>, std::uint64_t) override { return refused(); }
    Status touch() override { return refused(); }
    Status sync() override { return refused(); }
    Status close() override { return Status::success(); }
    Status try_lock() override { return refused(); }

  private:
    std::span<const std::byte> bytes_;
};

// One file, whatever it is called.
class OneFile final : public FileSystem {
  public:
    explicit OneFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

    Result<std::unique_ptr<File>> open_for_reading(const Path&) override {
        return Result<std::unique_ptr<File>>(std::make_unique<MemoryFile>(bytes_));
    }
    Result<std::unique_ptr<File>> create_exclusively(const Path&, std::optional<std::uint32_t>) override {
        return refused();
    }
    Result<std::unique_ptr<File>> open_lock_file(const Path&, std::uint32_t) override { return refused(); }
    Status rename(const Path&, const Path&) override { return refused(); }
    Status rename_if_free(const Path&, const Path&) override { return refused(); }
    Status exchange(const Path&, const Path&) override { return refused(); }
    Status remove_file(const Path&) override { return refused(); }
    Status remove_directory(const Path&) override { return refused(); }
    Status make_directory(const Path&, std::uint32_t) override { return refused(); }
    Status sync_directory(const Path&) override { return refused(); }
    Result<std::vector<std::string>> list_names(const Path&) override { return refused(); }
    Result<ListedFiles> list_files(const Path&) override { return refused(); }
    Status sync_file_system(const Path&) override { return refused(); }
    Result<FileInfo> stat(const Path&) override { return refused(); }
    Status check_writable(const Path&) override { return refused(); }

  private:
    std::span<const std::byte> bytes_;
};

void judge(std::span<const std::byte> bytes) {
    OneFile files(bytes);
    const Result<Bundle> bundle = Bundle::open(files, "fuzzed");
    if (!bundle) return;
    for (const BundledEntry& entry : bundle->entries()) {
        require(entry.offset + entry.bytes <= bytes.size());
        require(bundle->find(entry.name) == &entry);
        const Result<EntryFile> read = bundle->read(entry);
        require(!read || read->size == entry.bytes);
    }
    if (!bundle->verify().ok()) return;
    std::vector<BundledEntry> entries(bundle->entries().begin(), bundle->entries().end());
    const BundleHead head = place_entries(entries);
    require(head.file_bytes == bytes.size());
    require(std::memcmp(head.manifest.data(), bytes.data() + tar::kBlockBytes, head.manifest.size()) == 0);
}

// The header of a file of so many bytes, put over what is there.
void put_header(std::vector<std::byte>& bytes, std::size_t at, std::string_view name, std::uint64_t size) {
    const tar::Block header = tar::encode_header(name, size);
    std::copy(header.begin(), header.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    judge(bytes);
    if (size < 2 * tar::kBlockBytes) return 0;
    // With a right first header, so that the manifest is reached: it ends where the text of one would.
    std::vector<std::byte> headed(bytes.begin(), bytes.end());
    const std::string_view text(reinterpret_cast<const char*>(data) + tar::kBlockBytes,
                                size - tar::kBlockBytes);
    const std::size_t end = text.find("]}\n");
    put_header(headed, 0, kManifestName, end == text.npos ? text.size() : end + 3);
    judge(headed);
    return 0;
}
