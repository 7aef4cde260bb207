// What a call asks for, worked out from its arguments: the request that its kernel is prepared for, and the
// structs of the C ABI.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "attnsmith/attnsmith.h"

namespace attnsmith::tvm_ffi {

class Problem {
  public:
    // Throws a Failure that names the argument.
    explicit Problem(const CallArguments& arguments);
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    std::string request;  // JSON
    attnsmith_tensors tensors{};
    attnsmith_batch batch{};
    std::int64_t sequences = 0, q_tokens = 0;

  private:
    void read_queries();
    void read_keys();
    void point();
    const char* index_dtype() const;
    std::string request_text() const;
    std::int64_t bound(Option option, const char* name, std::int64_t longest) const;
    void need_axes(int field, const char* accepted) const;

    bool has(int field) const { return views_[static_cast<std::size_t>(field)].has_value(); }
    const View* view(int field) const {
        return has(field) ? &*views_[static_cast<std::size_t>(field)] : nullptr;
    }
    const char* name_of(int field) const;  // as an argument

    const CallArguments& arguments_;
    std::array<std::optional<View>, python::kFields> views_;  // with the axes of attnsmith_tensors
    std::array<attnsmith_dl_tensor, python::kFields> memory_;
    const char* storage_ = "dense";
    std::int64_t page_size_ = 0, kv_heads_ = 1;
};

// The same of a merge.
class Merge {
  public:
    explicit Merge(const CallArguments& arguments);
    Merge(const Merge&) = delete;
    Merge& operator=(const Merge&) = delete;

    std::string request;
    attnsmith_merge_tensors tensors{};

  private:
    std::vector<View> views_;
    std::vector<attnsmith_dl_tensor> memory_;
    std::vector<const attnsmith_dl_tensor*> o_states_, lse_states_;
};

}  // namespace attnsmith::tvm_ffi
