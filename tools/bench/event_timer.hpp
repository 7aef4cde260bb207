// Times what is put into a stream of its own, by events on the device.
#pragma once

#include <memory>

#include "driver/memory.hpp"

namespace attnsmith::bench {

class EventTimer {
  public:
    explicit EventTimer(const std::shared_ptr<const driver::Api>& api)
        : stream_(api), start_(api), end_(api) {}

    // Milliseconds that the device takes for what `enqueue` puts into the stream that it is given.
    template <typename Enqueue>
    double ms(const Enqueue& enqueue) const {
        start_.record(stream_.handle());
        enqueue(stream_.handle());
        end_.record(stream_.handle());
        end_.synchronize();
        return driver::elapsed_ms(start_, end_);
    }

  private:
    driver::Stream stream_;
    driver::Event start_, end_;
};

}  // namespace attnsmith::bench
