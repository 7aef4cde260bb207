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
#include <unordered_map>
#include <utility>

#include "attnsmith/attnsmith.h"
#include "python/fields.hpp"

namespace attnsmith::python {

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
    // Has it no more fit.
    void outgrow() { count_ = words_.size() + 1; }
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
    std::array<std::uint64_t, 160> words_;
    std::size_t count_ = 0;
};

// Of libattnsmith, by their addresses.
struct Library {
    decltype(&attnsmith_bind) bind = nullptr;
    decltype(&attnsmith_call_launch_at) launch_at = nullptr;
    decltype(&attnsmith_call_free) call_free = nullptr;
    decltype(&attnsmith_error_free) error_free = nullptr;
};

struct Workspace;

class Recipe {
  public:
    // Copies all but the pointers. The kernel is the caller's to keep.
    Recipe(const attnsmith_kernel* kernel, const attnsmith_tensors& tensors, const attnsmith_batch& batch,
           std::size_t workspace_bytes);

    // The arguments of attnsmith_run: a copy for one call, whose pointers are set then.
    struct Arguments {
        attnsmith_tensors tensors;
        attnsmith_batch batch;
        std::array<attnsmith_dl_tensor, kFields> memory;
        std::array<std::int8_t, kFields> places;  // of fields in memory; negative: absent

        void point(int field, void* data) {
            if (places[static_cast<std::size_t>(field)] >= 0)
                memory[static_cast<std::size_t>(places[static_cast<std::size_t>(field)])].data = data;
        }
    };
    void copy_to(Arguments& arguments) const;
    const Arguments& taught() const { return arguments_; }

    // Enqueues the kernels on the stream. What was bound serves again unless the workspace is another one, or
    // a tensor of lengths or pages. False where it cannot be done here.
    bool launch(const Library& library, const Arguments& arguments, Workspace& workspace, void* stream) const;

  private:
    void add(const attnsmith_dl_tensor* tensor, std::size_t field);

    // The call that is bound, and with what.
    struct Bound {
        attnsmith_call* call = nullptr;
        void (*free)(attnsmith_call*) = nullptr;
        void* workspace = nullptr;
        std::array<void*, kBatch.size()> batch{};

        Bound() = default;
        Bound(const Bound&) = delete;
        Bound& operator=(const Bound&) = delete;
        ~Bound() { reset(); }
        void reset() {
            if (call != nullptr) free(std::exchange(call, nullptr));
        }
    };

    const attnsmith_kernel* kernel_;
    std::size_t workspace_bytes_;
    Arguments arguments_{};
    std::size_t count_ = 0;
    std::array<std::array<std::int64_t, 2 * kMostAxes>, kFields> numbers_;
    mutable std::mutex mutex_;  // of bound_; taken after a workspace's
    mutable Bound bound_;
};

struct Workspace {
    std::mutex mutex;  // from packing to launch: two launches that divide keys must not mix
    void* data = nullptr;
    std::size_t bytes =
        0;  // 0 when it is forgotten, by which launches learn that their kernel may be gone, too
};

// `Entry` is a Recipe. What is found stays until it is let go, whatever others do meanwhile.
template <class Entry>
class Recipes {
  public:
    using Entries = std::unordered_map<Layout, std::shared_ptr<const Entry>, Layout::Hash>;

    std::shared_ptr<const Entry> find(const Layout& layout) const {
        const std::lock_guard lock(mutex_);
        const auto found = recipes_.find(layout);
        return found == recipes_.end() ? nullptr : found->second;
    }
    std::shared_ptr<Workspace> workspace(std::int32_t device, void* stream) const {
        const std::lock_guard lock(mutex_);
        const auto found = workspaces_.find({device, stream});
        return found == workspaces_.end() ? nullptr : found->second;
    }

    // How often all was forgotten.
    std::uint64_t generation() const {
        const std::lock_guard lock(mutex_);
        return generation_;
    }

    // Unless all was forgotten since that generation. Gives what goes for it: where there are too many, all
    // of them.
    Entries add(const Layout& layout, std::shared_ptr<const Entry> recipe, std::uint64_t generation) {
        Entries gone;
        const std::lock_guard lock(mutex_);
        if (generation != generation_) return gone;
        if (recipes_.size() >= kMost) recipes_.swap(gone);
        recipes_[layout].swap(recipe);
        if (recipe) gone.emplace(layout, std::move(recipe));
        return gone;
    }
    void set_workspace(std::int32_t device, void* stream, void* data, std::size_t bytes) {
        std::shared_ptr<Workspace> workspace;
        {
            const std::lock_guard lock(mutex_);
            std::shared_ptr<Workspace>& known = workspaces_[{device, stream}];
            if (!known) known = std::make_shared<Workspace>();
            workspace = known;
        }
        const std::lock_guard lock(workspace->mutex);
        workspace->data = data;
        workspace->bytes = bytes;
    }
    // No launch uses a kernel or a workspace of these any more when it returns. Gives what is forgotten.
    Entries forget() {
        Entries gone;
        Workspaces workspaces;
        {
            const std::lock_guard lock(mutex_);
            ++generation_;
            recipes_.swap(gone);
            workspaces_.swap(workspaces);
        }
        for (const auto& [where, workspace] : workspaces) {
            const std::lock_guard lock(workspace->mutex);
            workspace->data = nullptr;
            workspace->bytes = 0;
        }
        return gone;
    }

  private:
    using Workspaces = std::map<std::pair<std::int32_t, void*>, std::shared_ptr<Workspace>>;
    static constexpr std::size_t kMost = 1024;

    mutable std::mutex mutex_;
    std::uint64_t generation_ = 0;
    Entries recipes_;
    Workspaces workspaces_;
};

}  // namespace attnsmith::python
