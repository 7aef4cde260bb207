#include "cache/judged_entry.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace attnsmith::cache {

JudgedEntry judge_entry(const Layer& layer, const layout::EntryName& name, Trust trust) {
    Result<EntryFile> read = layer.read(name);
    // NFS: replaced between our look at the directory and our read; the second look is fresh.
    if (read.status().error_number == ESTALE) read = layer.read(name);
    JudgedEntry judged;
    if (!read) {
        judged.verdict = is_absence(read.status()) ? Verdict::gone : Verdict::unreadable;
        judged.status = read.status();
        return judged;
    }
    judged.file = std::move(read).value();
    const auto is = [&](Verdict verdict, int error_number, const std::string& reason) {
        judged.verdict = verdict;
        judged.status = Status::recoverable_error(error_number, layer.path_of(name), reason);
    };
    if (const auto reason = reason_for_distrust(judged.file.info, trust)) {
        is(Verdict::untrusted, EPERM,
           fmt::format("not trusted: {}; {}", *reason, trust_remedy(judged.file.info, trust)));
        return judged;
    }
    DecodeResult decoded = check_entry_file(judged.file, name);
    if (const auto* failure = std::get_if<DecodeFailure>(&decoded)) {
        if (failure->broken()) {
            is(Verdict::broken, EBADMSG, failure->reason);
        } else {
            is(Verdict::of_another_format, EPROTONOSUPPORT, failure->reason);
        }
        return judged;
    }
    judged.entry = std::move(std::get_if<DecodedEntry>(&decoded)->entry);
    return judged;
}

}  // namespace attnsmith::cache
