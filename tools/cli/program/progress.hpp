// Progress on standard error: a bar on a terminal that can be drawn on, a line a step elsewhere.
#pragma once

#include <chrono>
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

    // Shows the bar of work of which nothing is done yet, and starts its clock. Elsewhere nothing is written.
    void begin(int total, const std::string& what);
    // `costly` says whether the step took the time that others may take, too: the time left is told by those.
    void step(int done, int total, const std::string& what, bool costly = true);
    // In the bar's place, until the next step.
    void note(const std::string& what);
    // Takes the bar away, so that something else can be written.
    void clear();

  private:
    using Clock = std::chrono::steady_clock;

    // REQUIRES: mutex_ is held.
    void draw_bar(int done, int total, const std::string& text);
    void draw(const std::string& line);
    std::string time_left(int done, int total) const;

    std::mutex mutex_;
    bool terminal_;
    bool lines_;
    bool drawn_ = false;
    Clock::time_point began_ = Clock::now();
    int costly_ = 0;
};

}  // namespace attnsmith::cli
