// The commands. Each function adds one to `parent`: its flags, its help and what it does.
#pragma once

#include "cli/program/command.hpp"

namespace attnsmith::cli {

void add_plan(Command& parent);
void add_prewarm(Command& parent);
void add_check(Command& parent);
void add_doctor(Command& parent);
void add_bench(Command& parent);
void add_tune(Command& parent);
void add_cache(Command& parent);
void add_explain(Command& cache);
// Hidden: what completes the program's words in shells, and its man pages.
void add_documents(Command& root);

}  // namespace attnsmith::cli
