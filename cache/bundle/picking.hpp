// What the exports share: which entries there are, in which order, and reading each of them once. Internal to
// cache/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/entries/judged_entry.hpp"
#include "cache/entries/layer.hpp"
#include "cache/entries/options.hpp"
#include "cache/entries/reports.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

// Why entries are not in what is exported. One that is gone is not told of.
struct LeftOut {
    std::uint64_t skipped = 0;  // whole entries of another format version
    std::vector<BadEntry> bad;
};

// The entry as it stands there now, if it is sound.
std::optional<JudgedEntry> pick(const Layer& layer, const ListedEntry& listed, const Options& options,
                                LeftOut& left_out);

// By path; of equal key and version the lowest layer's first.
void sort_for_export(std::vector<ListedEntry>& entries);
bool have_one_name(const ListedEntry& a, const ListedEntry& b);

// ECANCELED
Status export_stopped(const Path& target);

}  // namespace attnsmith::cache
