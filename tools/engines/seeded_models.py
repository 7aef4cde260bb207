"""Models with the attention of well-known ones, few layers and weights from a seed, in folders that an engine loads as any other.

vLLM's own load_format="dummy" makes weights of at most 1e-3: attention then hardly moves a token. Here matrices are normal with a
standard deviation of STD; norms are as transformers makes them, the identity.
"""

import dataclasses
import gc
import json
import pathlib

STD = 0.04
SINK_STD = 1.0
TIED = 0.1  # of embeddings that are the output's weights, too
VOCABULARY = 32000


@dataclasses.dataclass(frozen=True)
class Shape:
    """config: a class of transformers; sizes: what its config has besides the sizes that all share. peer: the backend of vLLM
    that the tokens are compared with. sinks: the attention gets sinks, which no dense model of vLLM has. overrides: of the config
    that vLLM reads, where it does not know what this transformers writes. scaled: ends of weights' names, and what those weights are
    multiplied by: with logits of a standard deviation of 6 (gpt-oss's YaRN) or 16 (Gemma 4's scale of 1) bf16 alone decides most
    tokens."""

    config: str
    sizes: dict
    peer: str = "FLASH_ATTN"
    sinks: bool = False
    overrides: dict = dataclasses.field(default_factory=dict)
    scaled: dict = dataclasses.field(default_factory=dict)


def _gqa(heads, kv_heads, head_dim, **more):
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, **more}


_MIXED = ["sliding_attention", "full_attention"] * 2
_LLAMA_3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}

SHAPES = {
    "llama-3.1": Shape("LlamaConfig", _gqa(16, 4, 128, rope_parameters=_LLAMA_3)),
    "qwen3": Shape("Qwen3Config", _gqa(16, 8, 128)),
    "gemma-2": Shape("Gemma2Config", _gqa(8, 4, 256, sliding_window=256, layer_types=_MIXED, attn_logit_softcapping=50.0,
                                          query_pre_attn_scalar=256, final_logit_softcapping=None,
                                          tie_word_embeddings=True)),
    "gemma-3": Shape("Gemma3TextConfig", _gqa(8, 4, 256, sliding_window=256, layer_types=_MIXED)),
    "gemma-4": Shape("Gemma4TextConfig", _gqa(8, 4, 256, sliding_window=256, layer_types=_MIXED, global_head_dim=512,
                                              vocab_size_per_layer_input=VOCABULARY), peer="TRITON_ATTN",
                     overrides={"global_head_dim": 512, "allow_global_per_layer_attribute_access": True},
                     scaled={"q_norm.weight": 1 / 16}),
    "deepseek-v2-lite": Shape("DeepseekV2Config", {
        "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 4, "n_routed_experts": 4, "n_shared_experts": 1},
        peer="FLASH_ATTN_MLA"),
    "one-kv-head": Shape("LlamaConfig", _gqa(16, 1, 128, rope_parameters=_LLAMA_3)),  # as context parallelism without MLA needs
    "few-tokens": Shape("LlamaConfig", _gqa(16, 4, 128, rope_parameters=_LLAMA_3, vocab_size=64)),
    # Every token goes to every expert: one that bf16 sends elsewhere would say nothing of attention.
    "gpt-oss": Shape("GptOssConfig", _gqa(64, 8, 64, sliding_window=128, layer_types=_MIXED, num_local_experts=4,
                                          num_experts_per_tok=4, intermediate_size=1024), scaled={"q_proj.weight": 1 / 4}),
    "dense-sinks": Shape("LlamaConfig", _gqa(64, 8, 64), sinks=True),
}
#: Llama 3.1 8B but for its number of layers.
LLAMA_8B = {**_gqa(32, 8, 128, rope_parameters=_LLAMA_3), "hidden_size": 4096, "intermediate_size": 14336,
            "vocab_size": 128256}


def config_of(shape, layers=4, **sizes):
    import transformers  # here, so that the shapes are known without it
    kind = getattr(transformers, shape.config)
    common = {"num_hidden_layers": layers, "hidden_size": 2048, "intermediate_size": 4096, "vocab_size": VOCABULARY,
              "max_position_embeddings": 131072, "tie_word_embeddings": False, "dtype": "bfloat16"}
    return kind(**{**common, **shape.sizes, **sizes})


def write(name, folder, seed=0, layers=4, **sizes):
    """A config.json and weights in `folder`, made on the GPU. Gives the folder."""
    import torch
    import transformers
    from safetensors.torch import save_file
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(SHAPES[name], layers, **sizes)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator(device="cuda").manual_seed(seed)
    with torch.no_grad():
        for weight, tensor in model.state_dict().items():
            if tensor.dim() > 1 or weight.endswith(".sinks"):
                std = STD if tensor.dim() > 1 else SINK_STD
                tensor.copy_(std * torch.randn(tensor.shape, generator=generator, device="cuda"))
            for end, factor in SHAPES[name].scaled.items():
                if weight.endswith(end):
                    tensor.mul_(factor)
        if config.tie_word_embeddings:  # else the residual of a token's own embedding decides the next one
            model.get_input_embeddings().weight.mul_(TIED)
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()
               if not (config.tie_word_embeddings and name == "lm_head.weight")}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config.architectures = [type(model).__name__]
    del model, tensor
    gc.collect()
    torch.cuda.empty_cache()  # for the engines of other processes
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=1))
    return folder
