// The tables of what models and coverages cannot have or may not mean. `attnsmith/coverage.hpp` has the
// structs.
#pragma once

#include "attnsmith/coverage.hpp"
#include "problem/report/table.hpp"

namespace attnsmith::problem {

template <>
struct ReportTable<UnsupportedPart> {
    static constexpr auto fields =
        std::tuple(field("name", &UnsupportedPart::name),
                   field("reason", &UnsupportedPart::reason, {.definition = "sentence"}));
};

template <>
struct ReportTable<SkippedPart> {
    static constexpr std::string_view list = "skipped",
                                      about =
                                          "Combinations of words that there are not, and recorded lines "
                                          "that could not be read.";
    static constexpr auto fields = std::tuple(
        field("name", &SkippedPart::name), field("reason", &SkippedPart::reason, {.definition = "sentence"}));
};

template <>
struct ReportTable<ModelWarning> {
    static constexpr std::string_view list = "warnings",
                                      about =
                                          "What a model's plan may not hold, by the config's field; and "
                                          "what of a request says nothing.";
    static constexpr auto fields =
        std::tuple(field("kind", &ModelWarning::kind), field("field", &ModelWarning::field),
                   field("text", &ModelWarning::text, {.definition = "sentence"}));
};

}  // namespace attnsmith::problem
