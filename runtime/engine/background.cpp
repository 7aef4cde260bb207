#include "engine/background.hpp"

#include <pthread.h>

#include <exception>
#include <utility>
#include <vector>

#include "cache/files/never_destroyed.hpp"
#include "compiler/inside.hpp"

namespace attnsmith::engine {

struct Background::Pending {
    std::function<Kernel()> prepare;
    std::promise<Kernel> promise;
};

// All that is pending in this process, so that a child made by fork can tell those who wait.
class Background::Unfinished {
  public:
    std::mutex& mutex() { return mutex_; }

    void add(Pending* pending) {
        const std::lock_guard lock(mutex_);
        pending_.push_back(pending);
    }

    // fork() finds a promise untouched or kept, nothing between. In a child that was forked by the very work
    // that is done now (by a callback, say) it was kept already.
    void keep(Pending* pending, Kernel kernel, const std::exception_ptr& error) {
        const std::lock_guard lock(mutex_);
        if (std::erase(pending_, pending) == 0) return;
        if (error)
            pending->promise.set_exception(error);
        else
            pending->promise.set_value(std::move(kernel));
    }

    // REQUIRES: mutex() is held.
    void fail_all_in_child() {
        if (pending_.empty()) return;
        const std::exception_ptr error = std::make_exception_ptr(Error(
            "this process was forked while another thread of its parent was preparing this kernel, so it "
            "will not be ready here; prepare it anew, prewarm the cache or wait for it before forking, "
            "or start the process anew (spawn or exec in place of fork)"));
        for (Pending* pending : pending_) pending->promise.set_exception(error);
        pending_.clear();
    }

  private:
    // Never held over anything that waits, for fork() waits for it.
    std::mutex mutex_;
    std::vector<Pending*> pending_;
};

namespace {

constinit cache::NeverDestroyed<Background::Unfinished> unfinished;

[[maybe_unused]] const int fork_handlers = ::pthread_atfork(  //
    [] { unfinished.get().mutex().lock(); },                  //
    [] { unfinished.get().mutex().unlock(); },
    [] {
        unfinished.get().fail_all_in_child();
        unfinished.get().mutex().unlock();
    });

}  // namespace

void Background::run(Pending& pending) noexcept {
    Kernel kernel;
    std::exception_ptr error;
    try {
        kernel = pending.prepare();
    } catch (...) {
        error = std::current_exception();
    }
    unfinished.get().keep(&pending, std::move(kernel), error);
}

std::shared_future<Kernel> Background::start(std::function<Kernel()> prepare) {
    compiler::wait_at_exit();
    const auto pending = std::make_shared<Pending>(Pending{std::move(prepare), {}});
    std::shared_future<Kernel> future = pending->promise.get_future().share();
    join_done();
    unfinished.get().add(pending.get());
    if (!start_thread(pending)) run(*pending);
    return future;
}

bool Background::start_thread(const std::shared_ptr<Pending>& pending) {
    const std::lock_guard lock(mutex_);
    try {
        std::list<Worker> worker(1);
        worker.front().thread = std::thread([this, pending, self = &worker.front()] {
            run(*pending);
            const std::lock_guard done(mutex_);
            self->is_done = true;
        });
        workers_.splice(workers_.end(), worker);
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

void Background::join_done() {
    std::list<Worker> done;
    {
        const std::lock_guard lock(mutex_);
        for (auto worker = workers_.begin(); worker != workers_.end();) {
            const auto next = std::next(worker);
            if (worker->is_done) done.splice(done.end(), workers_, worker);
            worker = next;
        }
    }
    for (Worker& worker : done) worker.thread.join();
}

Background::~Background() {
    for (Worker& worker : workers_) worker.thread.join();
}

}  // namespace attnsmith::engine
