// Man pages, in man(7)'s macros.
#pragma once

#include <string>

#include "cli/program/command.hpp"

namespace attnsmith::cli {

// "attnsmith-cache-ls"
std::string man_page_name(const Command& command);

// A page of section 1. Commands within the command are named with their own pages.
std::string man_page(const Command& command);

}  // namespace attnsmith::cli
