#include "cli/cache/prometheus.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "problem/visible_text.hpp"

namespace attnsmith::cli {
namespace {

using cache::Event;

// A backslash, a quotation mark and a line feed are written as two characters in a label's value.
std::string label_value(std::string_view text) {
    std::string value;
    for (const char c : text) {
        if (c == '\\' || c == '"') {
            value += '\\';
            value += c;
        } else if (c == '\n') {
            value += "\\n";
        } else {
            value += c;
        }
    }
    return value;
}

struct Sample {
    std::string labels;
    std::uint64_t value = 0;
};

std::string labels_of(std::string_view directory) {
    // A label's value is UTF-8, and a directory's name may be any bytes.
    return fmt::format("directory=\"{}\"", label_value(problem::visible_lines(directory)));
}

// All samples of a metric stand together, below its two comments.
std::string metric(std::string_view name, std::string_view type, std::string_view help,
                   const std::vector<Sample>& samples) {
    if (samples.empty()) return {};
    std::string text = fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    for (const Sample& sample : samples)
        text += fmt::format("{}{{{}}} {}\n", name, sample.labels, sample.value);
    return text;
}

struct CounterMetric {
    std::string_view name, help;
    Event event;
};

constexpr CounterMetric kCounterMetrics[] = {
    {"attnsmith_cache_hits_total", "Kernels that were found in the cache.", Event::hit},
    {"attnsmith_cache_misses_total", "Kernels that were not found in the cache.", Event::miss},
    {"attnsmith_cache_miss_errors_total", "Misses that ended as an error, since nothing might be compiled.",
     Event::miss_error},
    {"attnsmith_cache_compiles_total", "Misses that were compiled.", Event::compile},
    {"attnsmith_cache_waits_total", "Misses that another thread or process had by the end of a wait.",
     Event::wait},
    {"attnsmith_cache_remote_hits_total", "Misses that a remote had.", Event::remote_hit},
    {"attnsmith_cache_remote_misses_total", "Answers of remotes that they have no such kernel.",
     Event::remote_miss},
    {"attnsmith_cache_remote_failures_total",
     "Remotes that could not be asked, or gave what was not to be taken.", Event::remote_failure},
    {"attnsmith_cache_remote_bytes_total", "Bytes of entries that were fetched from remotes.",
     Event::remote_bytes},
    {"attnsmith_cache_read_bytes_total", "Bytes of entries that were read.", Event::bytes_read},
    {"attnsmith_cache_published_bytes_total", "Bytes of entries that were stored.", Event::bytes_published},
    {"attnsmith_cache_evictions_total", "Entries that were deleted to keep the limit.", Event::eviction},
    {"attnsmith_cache_evicted_bytes_total", "Bytes that evicted entries took on their disk.",
     Event::bytes_evicted},
    {"attnsmith_cache_quarantines_total", "Broken entries that were put aside.", Event::quarantine},
};

// The directory's number, and below it each layer's, which is told apart by its directory.
template <class OfLayer>
std::vector<Sample> with_layers(const cache::Statistics& statistics, std::uint64_t own, OfLayer of_layer) {
    std::vector<Sample> samples = {{labels_of(statistics.directory) + ",layer=\"0\"", own}};
    for (std::size_t i = 0; i < statistics.layers.size(); ++i) {
        samples.push_back({fmt::format("{},layer=\"{}\"", labels_of(statistics.layers[i].directory), i + 1),
                           static_cast<std::uint64_t>(of_layer(statistics.layers[i]))});
    }
    return samples;
}

std::string sizes_text(const cache::Statistics& of) {
    using Layer = cache::LayerStatistics;
    const std::string here = labels_of(of.directory);
    const bool is_usable = of.not_trusted_because.empty() && of.unreadable.empty();
    std::string text =
        metric("attnsmith_cache_entries", "gauge", "Entries: kernels by one version of NVRTC each.",
               with_layers(of, of.entries, [](const Layer& layer) { return layer.entries; })) +
        metric("attnsmith_cache_size_bytes", "gauge", "Lengths of the entries' files together.",
               with_layers(of, of.bytes, [](const Layer& layer) { return layer.bytes; })) +
        metric(
            "attnsmith_cache_allocated_bytes", "gauge", "What the entries take on their disk.",
            with_layers(of, of.allocated_bytes, [](const Layer& layer) { return layer.allocated_bytes; })) +
        metric("attnsmith_cache_usable", "gauge",
               "Whether the directory or bundle can be read and is trusted.",
               with_layers(of, is_usable ? 1 : 0, [](const Layer& layer) {
                   return layer.not_usable_because.empty() && layer.not_trusted_because.empty() &&
                          layer.unreadable.empty();
               }));
    text += metric("attnsmith_cache_limit_bytes", "gauge",
                   "What the entries may take on their disk; 0 is without limit.", {{here, of.max_bytes}});
    text += metric("attnsmith_cache_writable", "gauge", "Whether entries can be stored.",
                   {{here, of.writable ? std::uint64_t{1} : 0}});
    text += metric("attnsmith_cache_quarantined_entries", "gauge", "Broken entries that lie in quarantine.",
                   {{here, of.quarantined}});
    text += metric("attnsmith_cache_staging_files", "gauge", "Files that somebody is writing, or died over.",
                   {{here, of.staging}});
    return text;
}

}  // namespace

std::string prometheus_text(const cache::Statistics& statistics) {
    std::string text = sizes_text(statistics);
    const std::string here = labels_of(statistics.directory);
    for (const auto& [name, help, event] : kCounterMetrics)
        text += metric(name, "counter", help, {{here, statistics.counters[event]}});
    if (statistics.counters.since > 0) {
        text += metric("attnsmith_cache_counting_since_timestamp_seconds", "gauge",
                       "When the counters were begun, in seconds since 1970.",
                       {{here, static_cast<std::uint64_t>(statistics.counters.since)}});
    }
    return text;
}

}  // namespace attnsmith::cli
