// The tables of attnsmith/cache.hpp.
#pragma once

#include "attnsmith/cache.hpp"
#include "problem/report/table.hpp"
#include "reports/tables/prewarm.hpp"
#include "settings/entry_times.hpp"

namespace attnsmith::problem {

inline constexpr FieldNote kDirectories{.definition = "directories"};
inline constexpr FieldNote kKey{.definition = "key"};
inline constexpr FieldNote kToolchain{.definition = "toolchain"};
inline constexpr FieldNote kNameIfKnown{.about = "Empty where the entry does not say it."};
inline constexpr FieldNote kSmIfKnown{.about = "0 where the entry does not say it."};
inline constexpr FieldNote kOtherFormat{.about = "Entries of other format versions."};

template <>
struct ReportTable<CacheUnreadable> {
    static constexpr std::string_view list = "unreadable",
                                      about = "What could not be read: anything may lie there.";
    static constexpr auto fields =
        std::tuple(field("path", &CacheUnreadable::path), field("reason", &CacheUnreadable::reason));
};

template <>
struct ReportTable<CacheBadEntry> {
    static constexpr std::string_view list = "bad_entries",
                                      about = "What is broken, and what was done with it.";
    static constexpr auto fields = std::tuple(
        field("path", &CacheBadEntry::path), field("reason", &CacheBadEntry::reason),
        field("quarantined", &CacheBadEntry::quarantined, {.about = "Whether it was put aside."}),
        field("action", &CacheBadEntry::action, {.about = "\"quarantined\", or what was done instead."}));
};

inline std::uint64_t age_of(const CacheEntry& entry) {
    return static_cast<std::uint64_t>(engine::age_seconds(entry.modified));
}

template <>
struct ReportTable<CacheEntry> {
    static constexpr auto fields = std::tuple(
        field("key", &CacheEntry::key, kKey), field("toolchain", &CacheEntry::toolchain, kToolchain),
        field("name", &CacheEntry::name, kNameIfKnown), field("sm", &CacheEntry::sm, kSmIfKnown),
        field("target", &CacheEntry::target), field("bytes", &CacheEntry::bytes),
        field("modified", &CacheEntry::modified, {.definition = "utc_time"}),
        computed("age_s", age_of, {.about = "Seconds since `modified`."}),
        field("layer", &CacheEntry::layer, {.about = "The place in `directories`."}),
        field("path", &CacheEntry::path));
};

template <>
struct ReportTable<CacheListing> {
    static constexpr std::string_view schema = "attnsmith.cache-ls/1",
                                      about = "What `attnsmith cache ls --json` prints.";
    static constexpr auto fields =
        std::tuple(field("directories", &CacheListing::directories, kDirectories),
                   field("entries", &CacheListing::entries), field("unreadable", &CacheListing::unreadable));
};

template <>
struct ReportTable<CacheCounters> {
    static constexpr auto fields = std::tuple(
        field("since", &CacheCounters::since,
              {.about = "When counting began; null where nothing was counted yet."}),
        field("hits", &CacheCounters::hits), field("misses", &CacheCounters::misses),
        field("miss_errors", &CacheCounters::miss_errors,
              {.about = "Kernels that were not there for a program that may not compile (on_miss error)."}),
        field("compiles", &CacheCounters::compiles), field("waits", &CacheCounters::waits),
        field("remote_hits", &CacheCounters::remote_hits),
        field("remote_misses", &CacheCounters::remote_misses),
        field("remote_failures", &CacheCounters::remote_failures),
        field("remote_bytes", &CacheCounters::remote_bytes),
        field("quarantines", &CacheCounters::quarantines), field("evictions", &CacheCounters::evictions),
        field("bytes_read", &CacheCounters::bytes_read),
        field("bytes_published", &CacheCounters::bytes_published),
        field("bytes_evicted", &CacheCounters::bytes_evicted));
};

template <>
struct ReportTable<CacheLayer> {
    static constexpr auto fields =
        std::tuple(field("directory", &CacheLayer::directory), field("entries", &CacheLayer::entries),
                   field("bytes", &CacheLayer::bytes), field("allocated_bytes", &CacheLayer::allocated_bytes),
                   field("not_trusted_because", &CacheLayer::not_trusted_because),
                   field("not_usable_because", &CacheLayer::not_usable_because),
                   field("unreadable", &CacheLayer::unreadable));
};

template <>
struct ReportTable<CacheStatistics> {
    static constexpr std::string_view schema = "attnsmith.cache-stat/1",
                                      about =
                                          "What `attnsmith cache stat --json` prints. Bytes are files' "
                                          "lengths; allocated bytes what they take on the disk.";
    static constexpr auto fields = std::tuple(
        field("directory", &CacheStatistics::directory), field("writable", &CacheStatistics::writable),
        field("not_writable_because", &CacheStatistics::not_writable_because),
        field("not_trusted_because", &CacheStatistics::not_trusted_because),
        field("entries", &CacheStatistics::entries), field("bytes", &CacheStatistics::bytes),
        field("allocated_bytes", &CacheStatistics::allocated_bytes),
        field("max_bytes", &CacheStatistics::max_bytes,
              {.about = "The limit of the allocated bytes; null where there is none."}),
        field("quarantined", &CacheStatistics::quarantined), field("staging", &CacheStatistics::staging),
        field("counters", &CacheStatistics::counters), field("layers", &CacheStatistics::layers),
        field("unreadable", &CacheStatistics::unreadable));
};

template <>
struct ReportTable<CacheVerification> {
    static constexpr std::string_view schema = "attnsmith.cache-verify/1",
                                      about = "What `attnsmith cache verify --json` prints.";
    static constexpr auto fields = std::tuple(
        field("directory", &CacheVerification::directory), field("checked", &CacheVerification::checked),
        field("unusable", &CacheVerification::unusable,
              {.about = "Of `bad`, directories and bundles that could not be looked into."}),
        field("other_format", &CacheVerification::other_format, kOtherFormat),
        field("stale_staging_removed", &CacheVerification::stale_staging_removed),
        field("bad", &CacheVerification::bad));
};

template <>
struct ReportTable<CacheKept> {
    static constexpr auto fields = std::tuple(field("kept_entries", &CacheKept::entries),
                                              field("kept_allocated_bytes", &CacheKept::allocated_bytes));
};

template <>
struct ReportTable<CacheGcReport> {
    static constexpr std::string_view schema = "attnsmith.cache-gc/1",
                                      about = "What `attnsmith cache gc --json` prints.";
    static constexpr auto fields =
        std::tuple(field("directory", &CacheGcReport::directory), field("entries", &CacheGcReport::entries),
                   field("quarantined", &CacheGcReport::quarantined),
                   field("staging", &CacheGcReport::staging), field("locks", &CacheGcReport::locks),
                   field("allocated_bytes", &CacheGcReport::allocated_bytes, {.about = "Freed on the disk."}),
                   field("max_bytes", &CacheGcReport::max_bytes, {.about = "Null where there is no limit."}),
                   inlined(&CacheGcReport::kept));
};

template <>
struct ReportTable<CacheClearReport> {
    static constexpr std::string_view schema = "attnsmith.cache-clear/1",
                                      about = "What `attnsmith cache clear --json` prints.";
    static constexpr auto fields = std::tuple(
        field("directory", &CacheClearReport::directory), field("entries", &CacheClearReport::entries),
        field("quarantined", &CacheClearReport::quarantined), field("staging", &CacheClearReport::staging),
        field("locks", &CacheClearReport::locks), field("bytes", &CacheClearReport::bytes),
        field("staging_left", &CacheClearReport::staging_left),
        field("locks_left", &CacheClearReport::locks_left));
};

template <>
struct ReportTable<CacheRemoveReport> {
    static constexpr std::string_view schema = "attnsmith.cache-rm/1",
                                      about = "What `attnsmith cache rm --json` prints.";
    static constexpr auto fields = std::tuple(
        field("directory", &CacheRemoveReport::directory), field("key", &CacheRemoveReport::key, kKey),
        field("entries", &CacheRemoveReport::entries,
              {.about = "How many were deleted, one of each toolchain."}),
        field("bytes", &CacheRemoveReport::bytes),
        field("left", &CacheRemoveReport::left, {.about = "Entries of the key in read-only layers."}));
};

inline constexpr std::string_view kExport = "What `attnsmith cache export --json` prints.";
inline constexpr FieldNote kLackedKernels{
    .about = "Of the kernels that are asked for, those that the cache lacks."};
inline constexpr FieldNote kBundleSignedBy{.about = "The id of the key, of a bundle that is signed.",
                                           .definition = "key_id",
                                           .may_be_left_out = kLeftOutIfEmpty};

template <>
struct ReportTable<CacheExportReport> {
    static constexpr std::string_view schema = "attnsmith.cache-export/1", about = kExport,
                                      variant = "A bundle.";
    static constexpr auto fields = std::tuple(
        field("file", &CacheExportReport::file, {.about = "The bundle."}),
        field("entries", &CacheExportReport::entries),
        field("bytes", &CacheExportReport::bytes,
              {.about = "The length of the bundle, or of the image's layer."}),
        field("other_format", &CacheExportReport::other_format, kOtherFormat),
        field("missing", &CacheExportReport::missing, kLackedKernels), field("bad", &CacheExportReport::bad),
        field("unreadable", &CacheExportReport::unreadable),
        field("signature_file", &CacheExportReport::signature_file,
              {.about = "Of a bundle that is signed.", .may_be_left_out = kLeftOutIfEmpty}),
        field("signed_by", &CacheExportReport::signed_by, kBundleSignedBy),
        field("unsupported", &CacheExportReport::unsupported), field("skipped", &CacheExportReport::skipped),
        field("warnings", &CacheExportReport::warnings));
};

template <>
struct ReportTable<CacheImageReport> {
    static constexpr std::string_view schema = "attnsmith.cache-export/1", about = kExport,
                                      variant = "An image.";
    static constexpr auto fields = std::tuple(
        field("oci", &CacheImageReport::directory, {.about = "The directory of the image layout."}),
        field("tag", &CacheImageReport::tag, {.definition = "image_tag"}),
        field("digest", &CacheImageReport::digest,
              {.about = "Of the image's manifest.", .definition = "sha256"}),
        field("entries", &CacheImageReport::entries), field("bytes", &CacheImageReport::bytes),
        field("other_format", &CacheImageReport::other_format, kOtherFormat),
        field("missing", &CacheImageReport::missing, kLackedKernels), field("bad", &CacheImageReport::bad),
        field("unreadable", &CacheImageReport::unreadable),
        field("unsupported", &CacheImageReport::unsupported), field("skipped", &CacheImageReport::skipped),
        field("warnings", &CacheImageReport::warnings));
};

template <>
struct ReportTable<CacheImportReport> {
    static constexpr std::string_view schema = "attnsmith.cache-import/1",
                                      about = "What `attnsmith cache import --json` prints.";
    static constexpr auto fields = std::tuple(
        field("file", &CacheImportReport::file), field("directory", &CacheImportReport::directory),
        field("entries", &CacheImportReport::entries), field("imported", &CacheImportReport::imported),
        field("present", &CacheImportReport::present), field("bytes", &CacheImportReport::bytes),
        field("signed_by", &CacheImportReport::signed_by,
              {.about = "The id of the trusted key, where a signature is asked for.",
               .definition = "key_id",
               .may_be_left_out = kLeftOutIfEmpty}));
};

template <>
struct ReportTable<CachePushedEntry> {
    static constexpr auto fields =
        std::tuple(field("name", &CachePushedEntry::name, kNameIfKnown),
                   field("sm", &CachePushedEntry::sm, kSmIfKnown), field("key", &CachePushedEntry::key, kKey),
                   field("toolchain", &CachePushedEntry::toolchain, kToolchain),
                   field("bytes", &CachePushedEntry::bytes),
                   field("state", &CachePushedEntry::state,
                         {.about = "gone: evicted or cleared while the push was under way."}),
                   field("error", &CachePushedEntry::error,
                         {.about = "Of a failed one.", .may_be_left_out = kLeftOutIfEmpty}));
};

template <>
struct ReportTable<CacheMissingKernel> {
    static constexpr auto fields = std::tuple(field("name", &CacheMissingKernel::name),
                                              field("sm", &CacheMissingKernel::sm, {.definition = "sm"}),
                                              field("key", &CacheMissingKernel::key, kKey));
};

template <>
struct ReportTable<CachePushReport> {
    static constexpr std::string_view schema = "attnsmith.cache-push/1",
                                      about = "What `attnsmith cache push --json` prints.";
    static constexpr auto fields = std::tuple(
        field("remotes", &CachePushReport::remotes,
              {.about = "Those that are used, without user, password and query."}),
        field("pushed", &CachePushReport::pushed, {.about = "Entries that a remote lacked."}),
        field("present", &CachePushReport::present, {.about = "Entries that all remotes had."}),
        field("failed", &CachePushReport::failed, {.about = "Entries that a remote has not in the end."}),
        field("cancelled", &CachePushReport::cancelled),
        field("bytes", &CachePushReport::bytes, {.about = "Of what was pushed."}),
        field("other_format", &CachePushReport::other_format, kOtherFormat),
        field("seconds", &CachePushReport::seconds), field("entries", &CachePushReport::entries),
        field("missing", &CachePushReport::missing, kLackedKernels), field("bad", &CachePushReport::bad),
        field("unreadable", &CachePushReport::unreadable),
        field("signed_by", &CachePushReport::signed_by,
              {.about = "The id of the key, where one signs.",
               .definition = "key_id",
               .may_be_left_out = kLeftOutIfEmpty}),
        field("unsupported", &CachePushReport::unsupported), field("skipped", &CachePushReport::skipped),
        field("warnings", &CachePushReport::warnings));
};

template <>
struct ReportTable<SigningKey> {
    static constexpr std::string_view schema = "attnsmith.cache-keygen/1",
                                      about = "What `attnsmith cache keygen --json` prints.";
    static constexpr auto fields =
        std::tuple(field("key_id", &SigningKey::key_id,
                         {.about = "By which signatures name the key.", .definition = "key_id"}),
                   field("secret_key_file", &SigningKey::secret_key_file),
                   field("public_key_file", &SigningKey::public_key_file));
};

template <>
struct ReportTable<CacheKeyField> {
    static constexpr auto fields =
        std::tuple(field("label", &CacheKeyField::label), field("value", &CacheKeyField::value));
};

template <>
struct ReportTable<CacheDifference> {
    static constexpr auto fields =
        std::tuple(field("label", &CacheDifference::label), field("here", &CacheDifference::here),
                   field("there", &CacheDifference::there));
};

template <>
struct ReportTable<CacheNearest> {
    static constexpr auto fields = std::tuple(
        field("entry", &CacheNearest::entry),
        field("differences", &CacheNearest::differences, {.about = "An empty side has no such field."}));
};

template <>
struct ReportTable<CacheExplainedEntry> {
    static constexpr auto fields = std::tuple(
        inlined(&CacheExplainedEntry::entry),
        field("fault", &CacheExplainedEntry::fault, {.about = "Why it is not used; empty where it is."}));
};

enum class FoundState : std::uint8_t { hit, miss };

inline std::string_view to_string(FoundState state) {
    return state == FoundState::hit ? "hit" : state == FoundState::miss ? "miss" : "";
}
inline FoundState state_of(const CacheExplanation& one) {
    return one.hit ? FoundState::hit : FoundState::miss;
}

template <>
struct ReportTable<CacheExplanation> {
    static constexpr auto fields = std::tuple(
        field("name", &CacheExplanation::name), field("sm", &CacheExplanation::sm, kSmIfKnown),
        field("key", &CacheExplanation::key, kKey), computed("state", state_of, {}, &CacheExplanation::hit),
        field("fields", &CacheExplanation::fields, {.about = "What the key was made of."}),
        field("entries", &CacheExplanation::entries),
        field("nearest", &CacheExplanation::nearest,
              {.about = "Of a miss, the entry that shares the most fields, and where it differs.",
               .may_be_left_out = kLeftOutIfEmpty}));
};

template <>
struct ReportTable<CacheExplanations> {
    static constexpr std::string_view schema = "attnsmith.cache-explain/1",
                                      about = "What `attnsmith cache explain --json` prints.";
    static constexpr auto fields = std::tuple(
        field("directories", &CacheExplanations::directories, kDirectories),
        field("kernels", &CacheExplanations::kernels), field("unreadable", &CacheExplanations::unreadable),
        field("unsupported", &CacheExplanations::unsupported), field("skipped", &CacheExplanations::skipped),
        field("warnings", &CacheExplanations::warnings));
};

}  // namespace attnsmith::problem
