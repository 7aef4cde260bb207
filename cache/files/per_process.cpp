#include "cache/files/per_process.hpp"

#include <pthread.h>

namespace attnsmith::cache {
namespace {

constinit std::atomic<std::uint64_t> generation{0};

[[maybe_unused]] const int fork_handler =
    ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t process_number() noexcept { return generation.load(std::memory_order_relaxed); }

}  // namespace attnsmith::cache
