// The suite's own random numbers: the same seed gives the same data with every compiler and standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>
#include <utility>
#include <vector>

namespace attnsmith::check {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    // Uniform in [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    double uniform(double low, double high) { return low + (high - low) * uniform(); }

    // Normal, with mean 0 and deviation 1 (Box and Muller 1958).
    double normal() {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        return radius * std::cos(2 * std::numbers::pi * uniform());
    }

    // Uniform in [low, high], both included.
    std::int64_t integer(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
    }

    template <typename T>
    void shuffle(std::vector<T>& values) {
        for (std::size_t n = values.size(); n > 1; --n)
            std::swap(values[n - 1], values[static_cast<std::size_t>(next() % n)]);
    }

  private:
    std::uint64_t state_;
};

// A seed of its own for each named case, so that a filter does not change a case's data.
inline std::uint64_t derive_seed(std::uint64_t seed, std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325u ^ seed;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return Random(hash).next();
}

}  // namespace attnsmith::check
