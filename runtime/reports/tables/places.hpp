// The tables of what a Runtime knows of its machine: the places of its cache, its GPUs.
#pragma once

#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "problem/report/table.hpp"

namespace attnsmith::engine {

// Where a cache is.
struct CachePlaces {
    std::vector<std::string> directories{};  // the writable one, then the read-only layers
    std::vector<std::string> remotes{};      // addresses, without passwords
    std::string named_by{};                  // the option or variable that they come from
};

}  // namespace attnsmith::engine

namespace attnsmith::problem {

template <>
struct ReportTable<engine::CachePlaces> {
    static constexpr std::string_view schema = "attnsmith.cache-dir/1",
                                      about = "What `attnsmith cache dir --json` prints.";
    static constexpr auto fields =
        std::tuple(field("directories", &engine::CachePlaces::directories, {.definition = "directories"}),
                   field("remotes", &engine::CachePlaces::remotes,
                         {.about = "Addresses of remote layers, without passwords."}),
                   field("named_by", &engine::CachePlaces::named_by,
                         {.about = "The option or variable that they come from."}));
};

inline int old_name_of_device(const DeviceInfo& info) { return info.device; }

template <>
struct ReportTable<DeviceInfo> {
    static constexpr auto fields = std::tuple(
        field("device", &DeviceInfo::device), computed("index", old_name_of_device),
        field("name", &DeviceInfo::name), field("sm", &DeviceInfo::sm),
        field("sm_count", &DeviceInfo::sm_count), field("memory_bytes", &DeviceInfo::memory_bytes));
};

}  // namespace attnsmith::problem
