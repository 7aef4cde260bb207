#include "cache/store/judged_entry.hpp"

#include <cerrno>
#include <utility>

namespace attnsmith::cache {

JudgedEntry judge_entry(const Layer& layer, const layout::EntryName& name, Trust trust,
                        const CheckContent& check_content) {
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
    judged.status = check_trusted(judged.file.info, trust);
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
    if (auto fault = check_content ? check_content(name.key, name.version, judged.entry) : std::nullopt) {
        judged.verdict = Verdict::broken;
        judged.status = Status::recoverable_error(EBADMSG, layer.path_of(name), std::move(*fault));
    }
    return judged;
}

}  // namespace attnsmith::cache
