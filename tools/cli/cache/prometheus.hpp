// The numbers of `attnsmith cache stat` in Prometheus's text format.
#pragma once

#include <string>

#include "cache/entries/reports.hpp"

namespace attnsmith::cli {

// Version 0.0.4 of the exposition format, as node_exporter's textfile collector reads it: one sample of each
// metric for the directory that it is of, which is its label. Counters are of all processes since they were
// last cleared.
std::string prometheus_text(const cache::Statistics& statistics);

}  // namespace attnsmith::cli
