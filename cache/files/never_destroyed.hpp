#pragma once

namespace attnsmith::cache {

// For objects that live as long as the process: threads may outlive static objects, and fork may come at any
// time. To be used as `constinit`: a child forked while another thread was in the first call of a function
// with a static local would wait for that thread, which it does not have, for ever.
template <class T>
class NeverDestroyed {
  public:
    constexpr NeverDestroyed() : value_() {}
    ~NeverDestroyed() {}
    NeverDestroyed(const NeverDestroyed&) = delete;
    NeverDestroyed& operator=(const NeverDestroyed&) = delete;

    T& get() { return value_; }

  private:
    union {
        T value_;
    };
};

}  // namespace attnsmith::cache
