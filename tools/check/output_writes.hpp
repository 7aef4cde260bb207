// Which bytes of the outputs a launch wrote: all of its rows, and no others.
#pragma once

#include <string>

#include "check/storage.hpp"

namespace attnsmith::check {

// What was written outside o and lse: into guards, or the gaps between the rows of padded tensors. Empty
// where nothing was.
std::string written_outside_tensors(const AttentionSpec& spec, const Storage& storage,
                                    Storage::Outputs outputs);
// The same outside the rows of the sequences, and what of these rows was not written.
std::string badly_written_rows(const AttentionSpec& spec, const Storage& storage, Storage::Outputs outputs);

// The outputs without the rows that see a scale that is no number above 0, be it their head's or a token's.
Storage::Outputs of_good_scales(const AttentionSpec& spec, const Storage& storage, Storage::Outputs outputs);

}  // namespace attnsmith::check
