// The numbers that a case's queries, keys and values hold.
#pragma once

#include <cstdint>
#include <vector>

#include "check/case.hpp"
#include "check/random.hpp"

namespace attnsmith::check {

class ValueSource {
  public:
    ValueSource(Values values, DType dtype, std::uint64_t seed);

    void query(std::uint16_t* row, std::int64_t dim);
    void key(std::uint16_t* row, std::int64_t dim, std::int64_t head);
    void value(std::uint16_t* row, std::int64_t dim);

  private:
    void from_table(std::uint16_t* row, std::int64_t dim, const std::vector<std::uint16_t>& table);

    Values values_;
    DType dtype_;
    std::uint64_t seed_;
    Random random_;
    // Encoded samples to draw from: far cheaper than a normal variate for each element. 2^16 or fewer.
    std::vector<std::uint16_t> query_table_, key_table_, value_table_;
    double query_first_ = 0, key_first_ = 0;  // not 0: the first component
};

// The scale that makes the logits of Values::offset_* and spread_* exact; those cases set
// AttentionSpec::scale to it.
inline constexpr double kExactScale = 0.125;

}  // namespace attnsmith::check
