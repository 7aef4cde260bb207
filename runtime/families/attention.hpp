// What the attention families have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "abi/attention_storage.h"
#include "abi/operand_stage.h"
#include "attnsmith/spec.hpp"
#include "families/backend.hpp"
#include "families/constants.hpp"

namespace attnsmith::families {

struct AttentionConstants {
    DType query = DType::bf16, key_value = DType::bf16, output = DType::bf16;  // how the tensors are stored
    DType position = DType::bf16;  // of latents, the columns of the position
    DType index = DType::int32;
    int head_dim_qk = 0, head_dim_vo = 0;
    int tile_q = 0;   // packed query rows of a CTA
    int tile_kv = 0;  // keys
    int stages = 0;   // tiles of K and of V in shared memory
    bool queries_in_registers = false;
    bool latent = false;  // of op mla: V is a part of K, whose other columns are head_dim_qk
    bool paged = false, softcap = false, alibi = false;
    bool absolute_cuts = false;  // a row's bits follow from its keys alone (abi/attention_cuts.h)
    int scale_blocks = 0;        // scales that a head of a token has of its own
    bool value_scale = false;    // the values of a KV head have one
    abi::OperandStage operand_stage = abi::OperandStage::as_loaded;

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.element("Query", self.query);
        visitor.element("KeyValue", self.key_value);
        visitor.element("Output", self.output);
        visitor.element("Position", self.position);
        visitor.index("Index", self.index);
        visitor.integer("head_dim_qk", self.head_dim_qk);
        visitor.integer("head_dim_vo", self.head_dim_vo);
        visitor.integer("tile_q", self.tile_q);
        visitor.integer("tile_kv", self.tile_kv);
        visitor.integer("stages", self.stages);
        visitor.flag("queries_in_registers", self.queries_in_registers);
        visitor.flag("latent", self.latent);
        visitor.flag("paged", self.paged);
        visitor.flag("softcap", self.softcap);
        visitor.flag("alibi", self.alibi);
        visitor.flag("absolute_cuts", self.absolute_cuts);
        visitor.integer("scale_blocks", self.scale_blocks);
        visitor.flag("value_scale", self.value_scale);
        visitor.operand_stage("operand_stage", self.operand_stage);
    }
};

// Bytes of the tensors' elements.
abi::StorageBytes storage_bytes(const AttentionConstants& constants);

// With what the spec decides, and no tiles yet.
AttentionConstants attention_constants(const AttentionSpec& spec);

// Why no kernel that multiplies on tensor cores serves the spec.
std::optional<std::string> tensor_core_refusal(const AttentionSpec& spec);
// Why no kernel serves the spec that reads keys and values of dtype alone.
std::optional<std::string> stored_keys_refusal(const AttentionSpec& spec);
// Why no kernel serves the spec whose tiles and KV split follow from the sizes.
std::optional<std::string> changing_shape_refusal(const AttentionSpec& spec);

// `storage` is what the keys come from: "paged", "contiguous", ...
std::string attention_name(Backend backend, const AttentionConstants& constants, std::string_view storage,
                           int alignment);

// What plans and refusals call a kernel of these tiles: "mma 64x128 stages 2".
std::string tile_label(Backend backend, int tile_q, int tile_kv, int stages);

// What sets a kernel apart by its alignment and its indices, for the end of its name.
std::string name_suffix(int alignment, DType index);

}  // namespace attnsmith::families
