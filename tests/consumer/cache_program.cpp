// What a program asks of the kernel cache. consumer_test.cmake links it by hand, with the static library and
// nothing else.
#include <attnsmith/attnsmith.hpp>
#include <iostream>

int main() {
    const attnsmith::Runtime runtime;
    const attnsmith::Cache cache = runtime.cache();
    const attnsmith::CacheStatistics statistics = cache.stat();
    std::cout << statistics.directory << ": " << statistics.entries << " of " << cache.list().entries.size()
              << "\n";
}
