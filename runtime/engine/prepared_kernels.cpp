#include "engine/prepared_kernels.hpp"

#include <functional>
#include <mutex>

#include "problem/request/request_fields.hpp"

namespace attnsmith::engine {
namespace {

constexpr std::size_t kMostPrepared = 4096;

class HashState {
  public:
    template <class T>
    HashState& add(const T& value) {
        // The golden ratio spreads consecutive values (boost::hash_combine's mixing, 64 bits wide).
        state_ ^= std::hash<T>{}(value) + 0x9e3779b97f4a7c15ULL + (state_ << 12) + (state_ >> 4);
        return *this;
    }
    std::size_t value() const { return state_; }

  private:
    std::size_t state_ = 0;
};

}  // namespace

std::size_t PreparedKernels::KeyHash::operator()(const PreparedKey& key) const noexcept {
    return HashState()
        .add(problem::hash_of(key.spec))
        .add(key.device)
        .add(key.sizes.batch)
        .add(key.sizes.q_len)
        .add(key.sizes.kv_len)
        .value();
}

std::optional<Kernel> PreparedKernels::find(const PreparedKey& key) const {
    Table& table = table_.get();
    const std::shared_lock lock(table.mutex);
    const auto found = table.kernels.find(key);
    if (found == table.kernels.end()) return std::nullopt;
    return found->second;
}

Kernel PreparedKernels::keep(const PreparedKey& key, const Kernel& kernel) {
    Table& table = table_.get();
    const std::unique_lock lock(table.mutex);
    // An engine may prepare for each length it meets. Loaded kernels are kept elsewhere, so that starting
    // over costs a plan, not a compile.
    if (table.kernels.size() >= kMostPrepared) table.kernels.clear();
    return table.kernels.try_emplace(key, kernel).first->second;
}

std::size_t PreparedKernels::size() const {
    Table& table = table_.get();
    const std::shared_lock lock(table.mutex);
    return table.kernels.size();
}

}  // namespace attnsmith::engine
