// What calls of a layout need, looked up by the layout, and the scratch memory of streams. Any number of
// threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interface.h"
#include "python/fields.hpp"

namespace attnsmith::torch_kernels {

inline constexpr std::int64_t kMostAxes = 5;  // of a tensor, as the library has it

// All that tells two calls apart whose recipe may differ.
class Layout {
  public:
    void add(std::uint64_t word) {
        if (count_ < words_.size()) words_[count_] = word;
        ++count_;
    }
    void add(std::int64_t count, const std::int64_t* numbers) {
        for (std::int64_t i = 0; i < count; ++i) add(static_cast<std::uint64_t>(numbers[i]));
    }
    bool fits() const { return count_ <= words_.size(); }
    bool operator==(const Layout& other) const {
        return count_ == other.count_ &&
               std::memcmp(words_.data(), other.words_.data(), count_ * sizeof(std::uint64_t)) == 0;
    }
    struct Hash {
        std::size_t operator()(const Layout& layout) const {
            std::uint64_t hash = 0x9e3779b97f4a7c15u;
            for (std::size_t i = 0; i < layout.count_; ++i)
                hash = (hash ^ layout.words_[i]) * 0xff51afd7ed558ccdu, hash ^= hash >> 32;
            return hash;
        }
    };

  private:
    std::array<std::uint64_t, 96> words_;
    std::size_t count_ = 0;
};

class Recipe {
  public:
    explicit Recipe(const attnsmith_torch_recipe& from);

    // The arguments of attnsmith_run: a copy for one call, whose pointers are set then.
    struct Arguments {
        attnsmith_tensors tensors;
        attnsmith_batch batch;
        std::array<attnsmith_dl_tensor, python::kFields> memory;
        std::array<std::int8_t, python::kFields> places;  // of fields in memory; negative: absent

        void point(int field, void* data) {
            if (places[static_cast<std::size_t>(field)] >= 0)
                memory[static_cast<std::size_t>(places[static_cast<std::size_t>(field)])].data = data;
        }
    };
    void copy_to(Arguments& arguments) const;

    const attnsmith_kernel* kernel;
    std::size_t workspace_bytes;
    std::vector<std::int64_t> out_shape, out_strides, lse_shape, lse_strides;

  private:
    void add(const attnsmith_dl_tensor* tensor, std::size_t field);

    Arguments arguments_{};
    std::size_t count_ = 0;
    std::array<std::array<std::int64_t, 2 * kMostAxes>, python::kFields> numbers_;
};

struct Workspace {
    std::mutex mutex;  // from packing to launch: two launches that divide keys must not mix
    void* data = nullptr;
    std::size_t bytes = 0;
};

class Recipes {
  public:
    // Held while a recipe or a workspace is used.
    using Use = std::shared_lock<std::shared_mutex>;
    Use use() { return Use(mutex_); }

    const Recipe* find(const Layout& layout) const;  // REQUIRES: in use
    Workspace* workspace(std::int32_t device, void* stream) const;

    void add(const Layout& layout, std::unique_ptr<Recipe> recipe);
    void set_workspace(std::int32_t device, void* stream, void* data, std::size_t bytes);
    void forget();

  private:
    static constexpr std::size_t kMost = 1024;

    std::shared_mutex mutex_;
    std::unordered_map<Layout, std::unique_ptr<Recipe>, Layout::Hash> recipes_;
    std::map<std::pair<std::int32_t, void*>, std::unique_ptr<Workspace>> workspaces_;
};

}  // namespace attnsmith::torch_kernels
