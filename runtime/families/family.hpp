// A family of kernels: one template, and everything that is known of the kernels made from it. Pure
// functions: no driver, no NVRTC, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "families/binding.hpp"
#include "families/config.hpp"
#include "families/launch.hpp"
#include "families/traits.hpp"
#include "families/tuning.hpp"
#include "families/work.hpp"
#include "problem/role.hpp"

namespace attnsmith::families {

using problem::Role;

// A kernel of a kernel set, and for which sizes it is there.
struct Candidate {
    KernelConfig kernel{};
    TileSource source = TileSource::model;
    // Packed query rows of a sequence and KV head: more than `above`, up to `up_to` where that is there.
    std::int64_t above = -1;
    std::optional<std::int64_t> up_to{};

    bool serves(std::int64_t rows) const { return rows > above && (!up_to || rows <= *up_to); }
};

// What the source has beside the constants.
struct SourceParts {
    std::string_view header{};       // the template, in kernel_templates
    std::string members{};           // of the Config struct, behind the constants; indented lines
    std::string arguments{};         // the parameter's type, of abi/
    std::string shared_bytes = "0";  // an expression
};

class AttentionFamily;

class Family {
  public:
    // "attention_mma": the template is the function attnsmith::attention_mma, and the entry
    // attnsmith_attention_mma.
    virtual std::string_view name() const = 0;
    virtual Backend backend() const = 0;
    virtual Role role() const = 0;

    // Why no kernel of the family serves the spec on the SM; nothing where one may. The spec is a validated
    // one's, here and below.
    virtual std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits& sm) const;
    // The family's part of the kernel set. It sees no sizes and no product, so that the set is closed over
    // both. Why what else there could be is not in it goes to `rejected`.
    std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm,
                                      const TuningTable& tuning, std::vector<Refusal>& rejected) const;
    virtual std::string kernel_name(const KernelConfig& kernel) const = 0;

    // What else is asked where its kernels are attentions; null of others, which are not ranked: such a
    // family is alone in its role, and has one kernel there.
    virtual const AttentionFamily* attention() const { return nullptr; }
    // Whether a launch of the kernel may need another step of its op: one before it, or what joins its
    // chunks.
    virtual bool needs(const KernelConfig&, Role) const { return false; }

    virtual Extent extent(const KernelConfig& kernel, const LaunchContext& context) const = 0;
    // Asks for the regions of the workspace that the kernel writes or reads. The context has no layout yet.
    virtual void add_regions(const KernelConfig&, const LaunchContext&, WorkspaceLayout&) const {}
    virtual SourceParts source(const KernelConfig& kernel) const = 0;
    // Throws InvalidRequest for tensors that its kernels cannot read. REQUIRES: `binding` is its op's.
    virtual Bound bind(const KernelConfig& kernel, const LaunchContext& context,
                       const Binding& binding) const = 0;

    Family(const Family&) = delete;
    Family& operator=(const Family&) = delete;

  protected:
    constexpr Family() = default;
    constexpr ~Family() = default;  // families live for ever: nobody deletes one

  private:
    // candidates() of a spec that there is no refusal of.
    virtual std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm,
                                           const TuningTable& tuning,
                                           std::vector<Refusal>& rejected) const = 0;
};

}  // namespace attnsmith::families
