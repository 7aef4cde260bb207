// What stands in an entry's place, read and judged: in one place for all who read entries. Internal to
// cache/.
#pragma once

#include "cache/entries/entry.hpp"
#include "cache/entries/entry_file.hpp"
#include "cache/entries/layer.hpp"
#include "cache/entries/options.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

enum class Verdict {
    sound,
    gone,               // evicted or cleared since it was seen
    unreadable,         // the system said no, or it is no file
    untrusted,          // by the open file itself: a directory that is trusted may hold what is not
    of_another_format,  // whole, and of another release
    broken,
};

struct JudgedEntry {
    Verdict verdict = Verdict::sound;
    // Why an entry is not sound: ENOENT, what the system said, EPERM, EPROTONOSUPPORT and EBADMSG, in the
    // order above.
    Status status;
    EntryFile file;  // empty where it is gone or unreadable
    Entry entry;     // of a sound one
};

enum class Depth {
    bytes,    // an entry is sound whose bytes are
    content,  // and in which the options' check_content finds no fault
};
JudgedEntry judge_entry(const Layer& layer, const layout::EntryName& name, const Options& options,
                        Depth depth);

}  // namespace attnsmith::cache
