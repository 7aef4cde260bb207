// Results of cases in a file, a line each as they come: what a run that was cut off leaves to one that goes
// on.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "check/case.hpp"

namespace attnsmith::check {

// What has to be the same where results of several runs are put together.
struct JournalHeader {
    std::string sources, gpu, driver;
    std::uint64_t seed = 0;  // which cases there are follows from it
};

class Journal {
  public:
    // The seed of a journal that is there and has begun.
    static std::optional<std::uint64_t> seed_of(const std::string& path);

    // Begins the file, or goes on with it: a last line that was cut off is passed over. Throws
    // std::runtime_error, which names what differs, where it is of another header, or not a journal, or
    // cannot be written.
    Journal(std::string path, const JournalHeader& header);

    // The result of the case with that full name, where it has passed; null where it has still to run.
    const CaseResult* passed(const std::string& full_name) const;
    // `seconds`: since this run began.
    void add(const CaseResult& result, double seconds);
    // What earlier runs took, to their last results.
    double seconds_before() const { return seconds_before_; }
    std::size_t size() const { return passed_.size(); }

  private:
    void read(const JournalHeader& header);

    std::string path_;
    std::ofstream file_;
    std::map<std::string, CaseResult> passed_;  // by full names
    double seconds_before_ = 0;
};

}  // namespace attnsmith::check
