// Log lines of one Runtime. Formatting is done only for lines that are wanted.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "attnsmith/runtime.hpp"
#include "problem/visible_text.hpp"

namespace attnsmith::engine {

// Thread-safe as far as the sink is.
class Log {
  public:
    Log(LogLevel level, LogSink sink) : level_(level), sink_(std::move(sink)) {}

    bool wants(LogLevel level) const { return level <= level_ && level != LogLevel::off; }

    template <class... Arguments>
    void operator()(LogLevel level, fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
        // Paths, metadata and compilers' words are anybody's text: a line stays one line, and plain.
        if (wants(level))
            sink_(level, problem::visible(fmt::format(format, std::forward<Arguments>(arguments)...)));
    }

  private:
    LogLevel level_;
    LogSink sink_;
};

}  // namespace attnsmith::engine
