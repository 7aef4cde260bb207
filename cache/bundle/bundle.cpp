#include "cache/bundle/bundle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "cache/bundle/tar.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::string_view kSchema = "attnsmith.bundle/1";

// The manifest's text between its values, see FORMAT.md.
constexpr std::string_view kBeforeSchema = "{\"schema\": \"";
constexpr std::string_view kBeforeEntries = "\", \"entries\": [";
constexpr std::string_view kBeforePath = "\n{\"path\": \"";
constexpr std::string_view kBeforeBytes = "\", \"bytes\": ";
constexpr std::string_view kBeforeOffset = ", \"offset\": ";
constexpr std::string_view kBeforeDigest = ", \"sha256\": \"";
constexpr std::string_view kAfterEntry = "\"}";
constexpr std::string_view kAfterEntries = "\n]}\n";

std::string manifest_of(std::span<const BundledEntry> entries) {
    std::string text = fmt::format("{}{}{}", kBeforeSchema, kSchema, kBeforeEntries);
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const BundledEntry& entry = entries[i];
        text += fmt::format("{}{}{}{}{}{}{}{}{}{}", i == 0 ? "" : ",", kBeforePath,
                            layout::entry_path(entry.name), kBeforeBytes, entry.bytes, kBeforeOffset,
                            entry.offset, kBeforeDigest, entry.sha256.hex(), kAfterEntry);
    }
    return text += kAfterEntries;
}

std::uint64_t end_of(const BundledEntry& entry) { return entry.offset + tar::padded(entry.bytes); }

// Reads a manifest's text from the left, and knows where it stands.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}

    std::size_t offset() const { return offset_; }
    bool at_end() const { return offset_ == text_.size(); }

    bool take(std::string_view expected) {
        if (!text_.substr(offset_).starts_with(expected)) return false;
        offset_ += expected.size();
        return true;
    }

    // Up to the next quotation mark, which stays. Nothing where there is none within `most` bytes.
    std::optional<std::string_view> take_text(std::size_t most) {
        const std::string_view rest = text_.substr(offset_, most + 1);
        const std::size_t size = rest.find('"');
        if (size == rest.npos) return std::nullopt;
        offset_ += size;
        return rest.substr(0, size);
    }

    std::optional<std::uint64_t> take_number() {
        const char* const begin = text_.data() + offset_;
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
        const auto digits = static_cast<std::size_t>(end - begin);
        if (error != std::errc() || (digits > 1 && *begin == '0')) return std::nullopt;
        offset_ += digits;
        return value;
    }

  private:
    std::string_view text_;
    std::size_t offset_ = 0;
};

struct ManifestFault {
    int error_number = EBADMSG;
    std::size_t offset = 0;  // in the manifest
    std::string reason;
};

ManifestFault not_as_specified(const Scanner& scanner) {
    return {EBADMSG, scanner.offset(), "the manifest is not written as manifests are"};
}

// The name of an entry, in the place where it belongs.
std::optional<layout::EntryName> parse_path(std::string_view path) {
    const std::size_t slash = path.find('/');
    if (slash == path.npos || !layout::is_shard_name(path.substr(0, slash))) return std::nullopt;
    return layout::parse_entry_name(path.substr(0, slash), path.substr(slash + 1));
}

std::optional<ManifestFault> parse_entry(Scanner& scanner, std::vector<BundledEntry>& entries) {
    if (!scanner.take(kBeforePath)) return not_as_specified(scanner);
    const std::size_t start = scanner.offset();
    const auto path = scanner.take_text(tar::kLongestName);
    if (!path) return not_as_specified(scanner);
    const auto name = parse_path(*path);
    if (!name) return ManifestFault{EBADMSG, start, fmt::format("{} names no entry", tar::quoted(*path))};
    if (!entries.empty() && !comes_first_in_bundle(entries.back().name, *name)) {
        const bool twice = !comes_first_in_bundle(*name, entries.back().name);
        return ManifestFault{EBADMSG, start,
                             fmt::format("{} {}", *path, twice ? "is there twice" : "is out of order")};
    }
    BundledEntry entry{.name = *name, .sha256 = {}};
    if (!scanner.take(kBeforeBytes)) return not_as_specified(scanner);
    const auto bytes = scanner.take_number();
    if (!bytes || !scanner.take(kBeforeOffset)) return not_as_specified(scanner);
    if (*bytes < kEntryOverheadBytes || *bytes > kMaxEntryBytes) {
        return ManifestFault{EBADMSG, scanner.offset(),
                             fmt::format("{} is said to have {} bytes, where an entry has from {} to {}",
                                         *path, *bytes, kEntryOverheadBytes, kMaxEntryBytes)};
    }
    const auto offset = scanner.take_number();
    if (!offset || !scanner.take(kBeforeDigest)) return not_as_specified(scanner);
    const auto hex = scanner.take_text(Sha256Digest::kHexDigits);
    const auto digest = hex ? Sha256Digest::parse(*hex) : std::nullopt;
    if (!digest || !scanner.take(kAfterEntry)) return not_as_specified(scanner);
    entry.bytes = *bytes, entry.offset = *offset, entry.sha256 = *digest;
    entries.push_back(entry);
    return std::nullopt;
}

std::optional<ManifestFault> parse_manifest(std::string_view text, std::vector<BundledEntry>& entries) {
    constexpr std::size_t kLongestSchema = 60;
    Scanner scanner(text);
    if (!scanner.take(kBeforeSchema)) return not_as_specified(scanner);
    const std::size_t start = scanner.offset();
    const auto schema = scanner.take_text(kLongestSchema);
    if (!schema) return not_as_specified(scanner);
    if (*schema != kSchema) {
        return ManifestFault{
            EPROTONOSUPPORT, start,
            fmt::format("its schema is {}, this build reads {}", tar::quoted(*schema), kSchema)};
    }
    if (!scanner.take(kBeforeEntries)) return not_as_specified(scanner);
    while (!scanner.take(kAfterEntries)) {
        if (!entries.empty() && !scanner.take(",")) return not_as_specified(scanner);
        if (auto fault = parse_entry(scanner, entries)) return fault;
    }
    if (!scanner.at_end()) return not_as_specified(scanner);
    return std::nullopt;
}

}  // namespace

std::string path_in_bundle(const std::string& bundle, const layout::EntryName& name) {
    return bundle + "/" + layout::entry_path(name);
}

bool comes_first_in_bundle(const layout::EntryName& a, const layout::EntryName& b) {
    return a.key != b.key ? a.key < b.key : layout::entry_name(a) < layout::entry_name(b);
}

BundleHead place_entries(std::span<BundledEntry> entries) {
    // Offsets are in the manifest whose length moves them. Longer offsets never make it shorter, so this
    // ends.
    BundleHead head;
    std::uint64_t manifest_bytes = 0;
    do {
        manifest_bytes = head.manifest.size();
        std::uint64_t header_at = tar::kBlockBytes + tar::padded(manifest_bytes);
        for (BundledEntry& entry : entries) {
            entry.offset = header_at + tar::kBlockBytes;
            header_at = end_of(entry);
        }
        head.file_bytes = header_at + tar::kEndBytes;
        head.manifest = manifest_of(entries);
    } while (head.manifest.size() != manifest_bytes);
    return head;
}

Status Bundle::refuse(std::uint64_t offset, std::string_view reason) const {
    return Status::recoverable_error(EBADMSG, path_,
                                     fmt::format("not a sound bundle (at byte {}: {})", offset, reason));
}

Status Bundle::read_exactly(std::uint64_t offset, std::span<std::byte> buffer) const {
    const Result<std::size_t> size = read_fully_at(*file_, offset, buffer);
    if (!size) return size.status();
    return *size == buffer.size() ? Status::success() : refuse(offset + *size, "the file ends here");
}

Status Bundle::read_header(std::uint64_t offset, std::string& name, std::uint64_t& bytes) const {
    tar::Block block;
    if (Status read = read_exactly(offset, block); !read.ok()) return read;
    auto decoded = tar::decode_header(block);
    if (const auto* refusal = std::get_if<tar::Refusal>(&decoded)) {
        return refuse(offset + refusal->offset, refusal->reason);
    }
    auto& header = *std::get_if<tar::Header>(&decoded);
    name = std::move(header.name);
    bytes = header.bytes;
    return Status::success();
}

Status Bundle::check_zeros(std::uint64_t offset, std::uint64_t bytes) const {
    std::array<std::byte, tar::kEndBytes> buffer;
    const std::span<std::byte> read = std::span(buffer).first(bytes);
    if (Status status = read_exactly(offset, read); !status.ok()) return status;
    const auto found = std::ranges::find_if(read, [](std::byte byte) { return byte != std::byte{0}; });
    if (found == read.end()) return Status::success();
    return refuse(offset + static_cast<std::uint64_t>(found - read.begin()), "there is no zero");
}

Result<Bundle> Bundle::open(FileSystem& files, std::string path) {
    Result<std::unique_ptr<File>> file = files.open_for_reading({path, {}});
    if (!file) return file.status();
    const Result<FileInfo> info = (*file)->stat();
    if (!info) return info.status();
    if (info->kind != FileKind::regular) {
        return Status::recoverable_error(EINVAL, path, "a bundle is a regular file, which this is not");
    }
    Bundle bundle(std::move(path), std::move(file).value(), *info);
    if (Status read = bundle.read_manifest(); !read.ok()) return read;
    if (Status checked = bundle.check_places(); !checked.ok()) return checked;
    return bundle;
}

Status Bundle::read_manifest() {
    std::string name;
    std::uint64_t bytes = 0;
    if (Status read = read_header(0, name, bytes); !read.ok()) return read;
    if (name != kManifestName) {
        return refuse(0, fmt::format("it begins with {} instead of {}", tar::quoted(name), kManifestName));
    }
    if (bytes > kMaxManifestBytes) {
        return refuse(0,
                      fmt::format("a manifest of {} bytes, where {} are the most", bytes, kMaxManifestBytes));
    }
    if (bytes > info_.bytes) return refuse(info_.bytes, "the file ends within its manifest");

    std::string text(bytes, '\0');
    if (Status read = read_exactly(tar::kBlockBytes, std::as_writable_bytes(std::span(text))); !read.ok()) {
        return read;
    }
    manifest_sha256_ = sha256_of(std::as_bytes(std::span(text)));
    if (auto fault = parse_manifest(text, entries_)) {
        Status status = refuse(tar::kBlockBytes + fault->offset, fault->reason);
        status.error_number = fault->error_number;
        return status;
    }
    const std::uint64_t end = tar::kBlockBytes + bytes;
    first_header_ = tar::kBlockBytes + tar::padded(bytes);
    return check_zeros(end, first_header_ - end);
}

// One entry follows the other, and the file ends after the last one: no offset points anywhere else.
Status Bundle::check_places() const {
    std::uint64_t header_at = first_header_;
    for (const BundledEntry& entry : entries_) {
        if (entry.offset != header_at + tar::kBlockBytes) {
            return refuse(header_at, fmt::format("the manifest has {} at {}, where it is due at {}",
                                                 layout::entry_path(entry.name), entry.offset,
                                                 header_at + tar::kBlockBytes));
        }
        header_at = end_of(entry);
    }
    const std::uint64_t due = header_at + tar::kEndBytes;
    if (info_.bytes == due) return Status::success();
    return refuse(std::min(due, info_.bytes),
                  fmt::format("the file has {} bytes, by its manifest it has {}", info_.bytes, due));
}

std::uint64_t Bundle::end_of_entries() const {
    return entries_.empty() ? first_header_ : end_of(entries_.back());
}

std::span<const BundledEntry> Bundle::entries_of(const Digest& key) const {
    const auto first =
        std::lower_bound(entries_.begin(), entries_.end(), key,
                         [](const BundledEntry& entry, const Digest& of) { return entry.name.key < of; });
    const auto last =
        std::find_if(first, entries_.end(), [&](const BundledEntry& entry) { return entry.name.key != key; });
    return {first, last};
}

const BundledEntry* Bundle::find(const layout::EntryName& name) const {
    for (const BundledEntry& entry : entries_of(name.key)) {
        if (entry.name.version == name.version) return &entry;
    }
    return nullptr;
}

Result<EntryFile> Bundle::read(const BundledEntry& entry) const {
    EntryFile read{.bytes = nullptr, .size = 0, .info = info_, .file = nullptr};
    read.info.bytes = entry.bytes;
    read.bytes.reset(new (std::nothrow) std::byte[entry.bytes]);
    if (read.bytes == nullptr) return Status::from_errno(ENOMEM, "read", path_);
    const Result<std::size_t> size =
        read_fully_at(*file_, entry.offset, std::span(read.bytes.get(), entry.bytes));
    if (!size) return size.status();
    read.size = *size;
    return read;
}

Result<EntryFile> Bundle::read_checked(const BundledEntry& entry, const CheckContent& check_content) const {
    const std::uint64_t header_at = entry.offset - tar::kBlockBytes;
    const std::string path = layout::entry_path(entry.name);
    std::string name;
    std::uint64_t bytes = 0;
    if (Status read = read_header(header_at, name, bytes); !read.ok()) return read;
    if (name != path) {
        return refuse(header_at,
                      fmt::format("there is {}, by the manifest it is {}", tar::quoted(name), path));
    }
    if (bytes != entry.bytes) {
        return refuse(header_at,
                      fmt::format("{} has {} bytes, by the manifest {}", path, bytes, entry.bytes));
    }
    Result<EntryFile> file = read(entry);
    if (!file) return file;
    const std::span<const std::byte> content(file->bytes.get(), file->size);
    if (file->size != entry.bytes) return refuse(entry.offset + file->size, "the file ends here");
    if (sha256_of(content) != entry.sha256) {
        return refuse(entry.offset, fmt::format("the SHA-256 of {} is not the manifest's", path));
    }
    const std::uint64_t end = entry.offset + entry.bytes;
    if (Status padding = check_zeros(end, end_of(entry) - end); !padding.ok()) return padding;
    const DecodeResult decoded = check_entry_file(*file, entry.name);
    if (const auto* failure = std::get_if<DecodeFailure>(&decoded)) {
        Status status = refuse(entry.offset, fmt::format("{}: {}", path, failure->reason));
        if (!failure->broken()) status.error_number = EPROTONOSUPPORT;
        return status;
    }
    const Entry& whole = std::get_if<DecodedEntry>(&decoded)->entry;
    const auto fault =
        check_content ? check_content(entry.name.key, entry.name.version, whole) : std::nullopt;
    if (fault) {
        return refuse(entry.offset, fmt::format("{}: {}", path, *fault));
    }
    return file;
}

Status Bundle::verify(bool all_are_known, const CheckContent& check_content) const {
    for (const BundledEntry& entry : entries_) {
        const Status read = read_checked(entry, check_content).status();
        const bool is_unknown = read.error_number == EPROTONOSUPPORT && !all_are_known;
        if (!read.ok() && !is_unknown) return read;
    }
    std::vector<BundledEntry> placed = entries_;
    if (place_entries(placed).file_bytes != info_.bytes) {
        return refuse(tar::kBlockBytes, "the manifest's offsets are larger than they need be");
    }
    return check_zeros(end_of_entries(), tar::kEndBytes);
}

}  // namespace attnsmith::cache
