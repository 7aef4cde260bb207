// Progress on standard error: a bar on a terminal, a line a step elsewhere.
#pragma once

#include <mutex>
#include <string>

namespace attnsmith::cli {

// Thread-safe.
class Progress {
  public:
    enum class Elsewhere { lines, nothing };  // what to do without a terminal

    explicit Progress(Elsewhere elsewhere);
    ~Progress() { clear(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void step(int done, int total, const std::string& what);
    // In the bar's place, until the next step.
    void note(const std::string& what);
    // Takes the bar away, so that something else can be written.
    void clear();

  private:
    // REQUIRES: mutex_ is held.
    void draw(std::string line);

    std::mutex mutex_;
    bool terminal_;
    bool lines_;
    bool drawn_ = false;
};

}  // namespace attnsmith::cli
