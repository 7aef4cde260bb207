// Secrets do not outlive their use in memory, where a core dump or the next owner of a page would have them.
// Internal to cache/signing.
#pragma once

#include <string.h>

#include <string>
#include <utility>

namespace attnsmith::cache {

// Overwrites, when it goes, what somebody else owns and keeps in its place.
class Overwriting {
  public:
    Overwriting(void* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
    Overwriting(const Overwriting&) = delete;
    Overwriting& operator=(const Overwriting&) = delete;
    ~Overwriting() { ::explicit_bzero(memory_, bytes_); }

  private:
    void* memory_;
    std::size_t bytes_;
};

// A text that is overwritten when it goes. It must not grow past what was reserved: the memory that it leaves
// then keeps what it had.
class SecretText {
  public:
    explicit SecretText(std::string text = {}) : text_(std::move(text)) {}
    SecretText(const SecretText&) = delete;
    SecretText& operator=(const SecretText&) = delete;
    ~SecretText() { ::explicit_bzero(text_.data(), text_.size()); }

    std::string& get() { return text_; }
    const std::string& get() const { return text_; }

  private:
    std::string text_;
};

}  // namespace attnsmith::cache
