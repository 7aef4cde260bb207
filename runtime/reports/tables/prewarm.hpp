// The tables of attnsmith/prewarm.hpp.
#pragma once

#include "attnsmith/prewarm.hpp"
#include "problem/report/parts.hpp"
#include "problem/report/table.hpp"

namespace attnsmith::engine {

// Names a second table of PrewarmReport, for a prewarm that compiled nothing.
struct PullReport;

}  // namespace attnsmith::engine

namespace attnsmith::problem {

template <>
struct ReportTable<PrewarmRefusal> {
    static constexpr std::string_view list = "unsupported",
                                      about =
                                          "What cannot be done: by `name`, or by `spec` where the library "
                                          "was given a list of specs; `sm` where it is so on that one "
                                          "alone.";
    static constexpr auto fields = std::tuple(
        field("name", &PrewarmRefusal::name, {.may_be_left_out = kLeftOutIfEmpty}),
        field("spec", &PrewarmRefusal::spec,
              {.about = "The place in the list that was given.", .may_be_left_out = kLeftOutIfEmpty}),
        field("reason", &PrewarmRefusal::reason, {.definition = "sentence"}),
        field("sm", &PrewarmRefusal::sm, {.definition = "sm", .may_be_left_out = kLeftOutIfEmpty}));
};

template <>
struct ReportTable<PrewarmedKernel> {
    static constexpr auto fields = std::tuple(
        field("name", &PrewarmedKernel::name), field("sm", &PrewarmedKernel::sm, {.definition = "sm"}),
        field("key", &PrewarmedKernel::key, {.definition = "key"}), field("state", &PrewarmedKernel::state),
        field("ms", &PrewarmedKernel::milliseconds), field("cubin_bytes", &PrewarmedKernel::cubin_bytes),
        field("error", &PrewarmedKernel::error,
              {.about = "Of a failed or missing one.", .may_be_left_out = kLeftOutIfEmpty}),
        field("directory", &PrewarmedKernel::directory,
              {.about = "The cache directory, the read-only layer or the bundle that has it.",
               .may_be_left_out = kLeftOutIfEmpty}));
};

inline std::size_t unsupported_count(const PrewarmReport& report) { return report.unsupported.size(); }
inline bool is_ok(const PrewarmReport& report) { return report.ok(); }

inline constexpr FieldNote kOk{.about = "Whether all that was asked for is in the cache now."};
inline constexpr FieldNote kMissing{
    .about = "Of a run that compiles nothing: kernels that neither the cache nor a remote has."};

template <>
struct ReportTable<PrewarmReport> {
    static constexpr std::string_view schema = "attnsmith.prewarm/1",
                                      about =
                                          "What `attnsmith prewarm --json` and to_json(PrewarmReport) "
                                          "print.";
    static constexpr auto fields = std::tuple(
        group("summary", field("total", &PrewarmReport::total), field("hits", &PrewarmReport::hits),
              field("compiled", &PrewarmReport::compiled), field("remote", &PrewarmReport::remote),
              field("waited", &PrewarmReport::waited), field("pushed", &PrewarmReport::pushed),
              field("missing", &PrewarmReport::missing, kMissing), field("failed", &PrewarmReport::failed),
              field("cancelled", &PrewarmReport::cancelled), computed("unsupported", unsupported_count),
              computed("ok", is_ok, kOk), field("seconds", &PrewarmReport::seconds)),
        field("kernels", &PrewarmReport::kernels), field("unsupported", &PrewarmReport::unsupported),
        field("skipped", &PrewarmReport::skipped), field("warnings", &PrewarmReport::warnings));
};

template <>
struct ReportTable<engine::PullReport> {
    static constexpr std::string_view schema = "attnsmith.cache-pull/1",
                                      about =
                                          "What `attnsmith cache pull --json` prints: a prewarm that "
                                          "compiled nothing.";
    static constexpr auto fields = std::tuple(
        group("summary", field("total", &PrewarmReport::total),
              field("hits", &PrewarmReport::hits, {.about = "Kernels that the cache had."}),
              field("remote", &PrewarmReport::remote, {.about = "Kernels that were fetched."}),
              field("waited", &PrewarmReport::waited,
                    {.about = "Kernels that another process fetched or compiled meanwhile."}),
              field("missing", &PrewarmReport::missing,
                    {.about = "Kernels that neither the cache nor a remote has."}),
              field("failed", &PrewarmReport::failed,
                    {.about = "Kernels that a remote could not be asked for, that were not to be taken, or "
                              "could not be stored."}),
              field("cancelled", &PrewarmReport::cancelled), computed("unsupported", unsupported_count),
              computed("ok", is_ok, kOk), field("seconds", &PrewarmReport::seconds)),
        field("kernels", &PrewarmReport::kernels), field("unsupported", &PrewarmReport::unsupported),
        field("skipped", &PrewarmReport::skipped), field("warnings", &PrewarmReport::warnings));
};

}  // namespace attnsmith::problem
