// What the store says, in the words of attnsmith/cache.hpp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attnsmith/cache.hpp"
#include "cache/store/store.hpp"
#include "reports/explain.hpp"
#include "reports/kernel_list.hpp"
#include "reports/unreadable.hpp"

namespace attnsmith::engine {

std::vector<std::string> directories_of(const cache::Options& options);  // the writable one first

CacheListing report_of(const KernelList& list, const cache::Options& options);
CacheStatistics report_of(const cache::Statistics& statistics);
CacheVerification report_of(const cache::VerifyReport& report, const std::string& directory);
CacheGcReport report_of(const cache::EvictionReport& report, const std::string& directory);
CacheClearReport report_of(const cache::ClearReport& report, const std::string& directory);
CacheRemoveReport report_of(const cache::RemoveReport& report, const cache::Digest& key,
                            const std::string& directory);
CacheExportReport report_of(const cache::ExportReport& report);
CacheImageReport report_of(const cache::ImageReport& report, const std::string& tag);
CacheImportReport report_of(const cache::ImportReport& report, const std::string& directory);
CacheExplanations report_of(const Explained& explained, const cache::Options& options);

}  // namespace attnsmith::engine
