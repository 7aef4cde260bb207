"""The configurations that are judged: each type's default, made small, and changes of one field."""

import copy
import json
import re

from transformers import CONFIG_MAPPING, PreTrainedConfig

LAYERS = 8
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
          "num_decoder_layers", "num_encoder_layers", "num_transformer_layers", "decoder_num_hidden_layers",
          "encoder_num_hidden_layers")
LANGUAGE = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
# A window has to be shorter than the sequence that is run.
WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size", "attention_chunk_size",
           "local_attention")
LONGEST_WINDOW = 400
INDICES = ("cross_attention_layers", "attn_layer_indices", "full_attn_idxs", "sliding_window_layers")  # of layers
# More of them only take longer to build.
EXPERTS = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$")
PER_TOKEN = re.compile(r"^(num_experts_per_tok(en)?|moe_k|moe_top_?k|top_k_experts|top_k|moe_topk|expert_topk)$")
SMALL = {"n_group": 1, "topk_group": 1}


def language_part(file):
    """The part of a config.json that describes the language model, and its path."""
    path = ()
    while True:
        name = next((name for name in LANGUAGE if isinstance(file.get(name), dict) and file[name]), None)
        if name is None:
            return file, path
        file, path = file[name], path + (name,)


def shrink(part):
    """Fewer layers, of the same kinds."""
    part.update({name: small for name, small in SMALL.items()
                 if isinstance(part.get(name), int) and part[name] > small})
    for name, value in part.items():
        if isinstance(value, int) and EXPERTS.match(name):
            part[name] = min(value, 8)
        elif isinstance(value, int) and PER_TOKEN.match(name):
            part[name] = min(value, 2)
    before = max([part[name] for name in COUNTS if isinstance(part.get(name), int)], default=0)
    layers = LAYERS
    shared = part.get("num_kv_shared_layers")
    if isinstance(shared, int) and shared > 0 and before > 0:
        layers = 12
        part["num_kv_shared_layers"] = 4
    for name in COUNTS:
        if isinstance(part.get(name), int):
            part[name] = min(part[name], layers)
    for name, value in part.items():
        if isinstance(value, list) and len(value) == before and before > layers:
            part[name] = value[:layers - 1] + value[-1:]  # some classes make the last layer what it has to be
        if name in INDICES and isinstance(value, list):
            part[name] = [layer for layer in value if layer < layers]
    if isinstance(part.get("per_layer_config"), dict):
        moved = {str(before - 1): str(layers - 1)} if before > layers else {}
        part["per_layer_config"] = {moved.get(layer, layer): value for layer, value in part["per_layer_config"].items()
                                    if layer in moved or int(layer) < layers - bool(moved)}
    for name in WINDOWS:
        if isinstance(part.get(name), int) and part[name] > LONGEST_WINDOW:
            part[name] = LONGEST_WINDOW - WINDOWS.index(name) * 10
    if isinstance(part.get("max_window_layers"), int):
        part["max_window_layers"] = min(part["max_window_layers"], layers)

# Defaults that describe no attention, or that transformers' own code cannot run.
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}}
NEEDED = {"glm4v_text": MROPE, "hunyuan_v1_dense": {"head_dim": 128}, "hunyuan_v1_moe": {"head_dim": 128},
          "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
          "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
          "deepseek_v2": {"num_experts_per_tok": 2}, "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2},
          "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
          "bamba": {"attn_layer_indices": [2, 6]},
          "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}}}


def default_file(model_type):
    """The type's default as a file that save_pretrained() would write, made small."""
    file = json.loads(CONFIG_MAPPING[model_type]().to_json_string())
    file["model_type"] = model_type
    file.update(NEEDED.get(model_type, {}))
    shrink(language_part(file)[0])
    for name in ("out_features", "out_indices", "stage_names"):  # of a backbone: they count the layers, too
        file.pop(name, None)
    return file


def load(file):
    file = PreTrainedConfig._decode_special_floats(copy.deepcopy(file))
    return CONFIG_MAPPING[file["model_type"]].from_dict(file)


SPEAKS = re.compile(r"head|attn|attention|window|sliding|softcap|scal|layer_types|pattern|chunk|causal|is_decoder|"
                    r"bidirectional|group|multi_query|lora_rank|position_embedding_type|interval|period|offset|alibi|"
                    r"sink|kv_|_kv|qk_|index|block_type|interleave|global|local|no_rope")
IGNORED = re.compile(r"dropout|token|initializer|implementation|_norm|norm_|router|expert|moe|vocab|rope_theta|hidden_act|"
                     r"activation|lm_head|tie_|return_|output_|embedding_scale|scale_embedding|n_group|topk_group|"
                     r"^id2label|^label2id|chunk_size_feed_forward|pruned_heads|routed_scaling")
# Fields that other types' code reads: a file that has one is planned by what the type's own code does with it.
FOREIGN = {"head_dim": 96, "num_key_value_heads": 2, "sliding_window": 200, "use_sliding_window": True,
           "max_window_layers": 2, "attn_logit_softcapping": 30.0, "attention_chunk_size": 160,
           "query_pre_attn_scalar": 100, "attention_multiplier": 0.3, "v_head_dim": 48, "is_causal": False,
           "is_decoder": True, "use_bidirectional_attention": True, "sliding_window_pattern": 3,
           "_sliding_window_pattern": 3, "multi_query": True, "num_kv_heads": 2, "layer_types": "alternate",
           "scale_attn_weights": False, "alibi": True, "kv_lora_rank": 64, "global_head_dim": 64,
           "attention_k_eq_v": True, "num_global_key_value_heads": 2, "position_embedding_type": "relative_key",
           "full_attention_interval": 3, "window_size": 200, "sliding_window_size": 200,
           "num_attention_groups": 4, "attention_value_scale": 0.5, "softmax_scale": 0.3}


def other_values(name, value, part, rng):
    """Values that a file could have instead."""
    if name == "layer_types":
        words = sorted({*value, "full_attention", "sliding_attention"})
        words = [word for word in words if word in ("full_attention", "sliding_attention")]
        return [[words[(i + 1) % 2 if len(words) > 1 else 0] for i in range(len(value))]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        if name in WINDOWS:
            return [200, None]
        if name in COUNTS or name.endswith("_layers"):
            return [max(1, value // 2)]
        if "head" in name and "dim" not in name or "group" in name:
            return [value // 2 if value % 2 == 0 else value * 2, 1 if value != 1 else 2]
        if "dim" in name or "rank" in name:
            return [value + 32 if rng.random() < 0.5 else max(16, value // 2)]
        return [value + 1, max(1, value // 2)]
    if isinstance(value, float):
        return [value * 1.5 if value else 0.3]
    if value is None:
        foreign = FOREIGN.get(name)
        return [] if foreign in (None, "alternate") else [foreign]
    if name == "position_embedding_type":
        return ["relative_key"]
    return []


def changes(file, rng):
    """(what is changed, the changed file) of one field each: another value, null, absent, or one that is new."""
    part, path = language_part(file)

    def changed(name, value, absent=False):
        copy_of_file = copy.deepcopy(file)
        inner = language_part(copy_of_file)[0]
        if absent:
            del inner[name]
        else:
            inner[name] = value
        return copy_of_file

    for name, value in sorted(part.items()):
        if not SPEAKS.search(name) or IGNORED.search(name) or isinstance(value, dict) or name in COUNTS:
            continue
        for other in other_values(name, value, part, rng):
            if other != value:
                yield name, f"{name} = {json.dumps(other)}", changed(name, other)
        yield name, f"{name} absent", changed(name, None, absent=True)
    for name, value in FOREIGN.items():
        if part.get(name) is not None:
            continue
        if value == "alternate":
            layers = next((part[each] for each in COUNTS if isinstance(part.get(each), int)), None)
            if layers is None:
                continue
            value = [("full_attention", "sliding_attention")[layer % 2] for layer in range(layers)]
        yield name, f"{name} = {json.dumps(value)}", changed(name, value)
