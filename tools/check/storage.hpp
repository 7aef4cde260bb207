// A case's memory: host images of all device buffers, filled for one step at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "check/case.hpp"
#include "check/indices.hpp"
#include "check/placement.hpp"
#include "check/quantiser.hpp"

namespace attnsmith::check {

// What every byte of an output is before a launch: a NaN in f16 and in bf16, and in f32.
inline constexpr std::uint16_t kPoison = 0x7fd5;
inline constexpr std::uint32_t kPoisonF32 = 0x7fd5d5d5;

// body(poison), with that of an output's elements.
template <typename Body>
void with_poison(DType output, const Body& body) {
    if (output == DType::fp32)
        body(kPoisonF32);
    else
        body(kPoison);
}

// One device buffer and what it is meant to hold.
struct Image {
    std::string name;
    std::vector<std::byte> host;
    Buffer device;

    void upload() { device.upload(host.data(), host.size()); }
    std::vector<std::byte> download() const;
};

class Storage {
  public:
    Storage(const Runtime& runtime, const Case& test, std::uint64_t seed);

    AttentionTensors tensors() const;
    // Where the right scales are, for Case::scales_at_launch.
    TensorAddresses addresses() const;
    Batch batch() const;
    std::size_t workspace_bytes(const Kernel& kernel) const;

    // Index arrays and values, NaN elsewhere, all on the device: fresh ones, or with Step::same_data those of
    // the last load.
    void load(const Step& step);
    void poison_outputs();

    // What load() made, for the reference. Valid while this object is.
    ReferenceInput reference_input() const;

    // Outputs of all rows as a launch left them, and everything that was in the buffers.
    struct Outputs {
        std::vector<std::byte> o, lse;  // whole images
    };
    Outputs read_outputs() const;
    // The first element of a sequence's rows that is still poison; empty where all are written.
    std::string unwritten(const Outputs& outputs) const;

    const Place& o_place() const { return placement_.o; }
    const Place& lse_place() const { return placement_.lse; }
    // Element of o (of lse) that a sequence's query and head begin at.
    std::int64_t o_element(std::int64_t sequence, std::int64_t query, std::int64_t head) const;
    std::int64_t lse_element(std::int64_t sequence, std::int64_t query, std::int64_t head) const;

    // Whether the scales of a KV head that the last load() put on the device are numbers above 0.
    bool has_good_scales(std::int64_t kv_head) const;
    // The same of what a row sees: where tokens have scales of their own those of the tokens that it attends
    // to.
    bool has_good_scales(const QueryRow& row, std::int64_t kv_head) const;

    // Name of the first input buffer whose device bytes are no longer what was uploaded; empty if none.
    std::string changed_input() const;

  private:
    void copy_positions();
    void state_latents(AttentionTensors& tensors) const;

    enum Role : std::size_t {
        kQ,
        kK,
        kV,
        kSinks,
        kSlopes,
        kQIndptr,
        kQLens,
        kKvIndptr,
        kKvLens,
        kTable,
        kPageIndptr,
        kPageIndices,
        kLastPage,
        kTableRows,
        kQPe,
        kKpe,
        kKScale,
        kVScale,
        kNoScale,  // what scales are bound to that each launch replaces
        kRoles
    };

    void allocate(const Runtime& runtime);
    void allocate_scales();
    // Where the columns of a key's position are among all of them, as those of a query.
    std::int64_t position_first() const;
    void make_head_vectors();
    void make_scales();
    void set_scales(const Step& step);
    void set_indices(const Step& step);
    void fill_values(const Step& step);
    void store_token(const Place& place, Role role, std::int64_t sequence, std::int64_t token,
                     std::int64_t head, const std::vector<std::uint16_t>& row);
    void store_row(Role role, std::int64_t index, std::int64_t head, const std::vector<std::uint16_t>& row);
    void store_position(std::int64_t sequence, std::int64_t token, const std::vector<std::uint16_t>& key);
    bool has_token_scales() const { return is_per_token(test_.spec.kv_scale); }
    // The scales of one head of one token in the image of k's or v's; null: its page is not a page.
    const float* scales_at(bool of_key, std::int64_t sequence, std::int64_t token, std::int64_t head) const;
    void draw_scales(bool of_key, std::int64_t sequence, std::int64_t token, std::int64_t head,
                     bool has_place);
    void spoil(const SpoiledScale& spoiled);
    void add_scales(AttentionTensors& tensors) const;
    void plant(const Planted& planted);
    // Keys before this one are left of every row's window.
    std::int64_t first_seen_key(std::int64_t sequence) const;
    void set_index_image(Role role, const std::vector<std::int64_t>& values, const IndexShape& shape);
    IndexShape shape_of(Role role) const;
    bool lens_needed(bool q) const;
    bool uses(Role role) const;

    Tensor index_tensor(Role role) const;
    const float* vector_data(Role role) const;
    Image& image_of(Role role) { return images_[alias_[role]]; }
    const Image& image_of(Role role) const { return images_[alias_[role]]; }

    std::int64_t q_element(std::int64_t sequence, std::int64_t token, std::int64_t head) const;
    // Negative: the token's page is not a page.
    std::int64_t kv_element(const Place& place, std::int64_t sequence, std::int64_t token,
                            std::int64_t head) const;
    std::int64_t page_of(std::int64_t sequence, std::int64_t number) const;
    std::uint16_t* element(Role role, std::int64_t index);
    // Elements of k and v, which are of kv_dtype. Null: the token's page is not a page.
    const std::byte* stored(Role role, std::int64_t index) const;
    std::byte* stored(Role role, std::int64_t index);

    const Case& test_;
    Capacity capacity_;
    Placement placement_;
    Random random_, before_load_;
    Random scale_random_{0};          // of scales of tokens, one after the other
    std::vector<Image> images_;       // by Role; those that share another's or are not used are empty
    std::vector<std::size_t> alias_;  // the image that a role's tensor lies in
    Image o_, lse_;
    IndexArrays indices_;
    std::vector<SequenceLengths> lengths_;
    std::vector<float> sinks_, slopes_;
    std::vector<float> k_scales_, v_scales_;  // of each KV head, that keys and values are quantised with
    std::vector<float> k_scales_now_, v_scales_now_;            // and that are on the device
    std::vector<Quantiser> key_quantisers_, value_quantisers_;  // likewise; empty: k and v are not of 8 bits
};

}  // namespace attnsmith::check
