#include "cache/entries/judged_entry.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "cache/files/trust.hpp"

namespace attnsmith::cache {
namespace {

// Entries in directories are not signed. So who trusts keys takes from one only what is its own user's or
// root's, though the directory may be shared: anybody else who writes there could have made the entry.
Status check_writers(const FileInfo& info, const Layer& layer, const Options& options) {
    Status trusted = check_trusted(info, options.trust);
    if (!trusted.ok() || options.trusted_keys.empty() || layer.is_signed()) return trusted;
    const auto reason = reason_for_distrust(info, Trust::owner);
    if (!reason) return Status::success();
    return Status::recoverable_error(
        EPERM, {},
        fmt::format(
            "not signed by a trusted key: {}; share it as a signed bundle or by a remote, or trust no keys",
            *reason));
}

}  // namespace

JudgedEntry judge_entry(const Layer& layer, const layout::EntryName& name, const Options& options,
                        Depth depth) {
    Result<EntryFile> read = layer.read(name);
    // NFS: replaced between our look at the directory and our read; the second look is fresh.
    if (read.status().error_number == ESTALE) read = layer.read(name);
    JudgedEntry judged;
    if (!read) {
        judged.verdict = is_absence(read.status())               ? Verdict::gone
                         : read.status().error_number == EBADMSG ? Verdict::broken
                                                                 : Verdict::unreadable;
        judged.status = read.status();
        return judged;
    }
    judged.file = std::move(read).value();
    judged.status = check_writers(judged.file.info, layer, options);
    if (!judged.status.ok()) {
        judged.verdict = Verdict::untrusted;
        judged.status.path = layer.path_of(name);
        return judged;
    }
    DecodeResult decoded = check_entry_file(judged.file, name);
    if (const auto* failure = std::get_if<DecodeFailure>(&decoded)) {
        const bool broken = failure->broken();
        judged.verdict = broken ? Verdict::broken : Verdict::of_another_format;
        judged.status = Status::recoverable_error(broken ? EBADMSG : EPROTONOSUPPORT, layer.path_of(name),
                                                  failure->reason);
        return judged;
    }
    judged.entry = std::move(std::get_if<DecodedEntry>(&decoded)->entry);
    if (depth == Depth::bytes || !options.check_content) return judged;
    if (auto fault = options.check_content(name.key, name.version, judged.entry)) {
        judged.verdict = Verdict::broken;
        judged.status = Status::recoverable_error(EBADMSG, layer.path_of(name), std::move(*fault));
    }
    return judged;
}

}  // namespace attnsmith::cache
