// How numbers of 16 bits become keys and values of 8, on the host, as whoever fills a cache does it.
#pragma once

#include <cstdint>
#include <vector>

#include "attnsmith/types.hpp"

namespace attnsmith::check {

class Quantiser {
  public:
    // From f16 or bf16 to e4m3 or e5m2. What is stored times `scale` is about the number.
    Quantiser(DType from, DType to, double scale);

    void quantise(const std::uint16_t* row, std::int64_t dim, std::uint8_t* stored) const {
        for (std::int64_t d = 0; d < dim; ++d) stored[d] = stored_[row[d]];
    }

  private:
    std::vector<std::uint8_t> stored_;  // of each pattern of 16 bits
};

}  // namespace attnsmith::check
