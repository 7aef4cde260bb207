"""Models of transformers with random weights, of architectures whose attention differs."""

import torch
import transformers

_COMMON = {"vocab_size": 97, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
           "max_position_embeddings": 2048, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_LATENT = {"num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4,
           "first_k_dense_replace": 1, "n_shared_experts": 1}
# By architecture, the configuration's class and what it has besides. Windows are shorter than what is generated. Every
# token has all experts, since which of them it has may hang on a rounding, and all that follows on that.
ARCHITECTURES = {
    "Llama": ("LlamaConfig", {}),
    "Qwen3": ("Qwen3Config", {}),
    "Mistral": ("MistralConfig", {"sliding_window": 5}),
    "Gemma2": ("Gemma2Config", {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16}),
    "GptOss": ("GptOssConfig", {"sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 2,
                                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "DeepseekV3": ("DeepseekV3Config", _LATENT),
}
#: By size, what configurations have, those of DeepSeek's latents, and the factor on the weights of q and k, so that
#: attention is to some keys more than to others. "small" has head dims of real models.
SIZES = {
    "tiny": ({"hidden_size": 64, "intermediate_size": 96, "head_dim": 32},
             {"moe_intermediate_size": 32, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
              "v_head_dim": 16}, 8),
    "small": ({"hidden_size": 512, "intermediate_size": 1024, "head_dim": 128, "num_attention_heads": 8, "vocab_size": 1000,
               "sliding_window": 33},
              {"moe_intermediate_size": 128, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_rope_head_dim": 64,
               "qk_nope_head_dim": 128, "v_head_dim": 128}, 2),
}


def model_of(architecture, size="tiny", dtype=torch.float32, device="cpu"):
    """With the same random weights for every dtype and device, and eager attention."""
    torch.manual_seed(sum(architecture.encode()))
    config_class, own = ARCHITECTURES[architecture]
    common, latent, sharpness = SIZES[size]
    of_size = {name: value for name, value in common.items() if name != "sliding_window" or name in own}
    if own is _LATENT:
        del of_size["head_dim"]
        of_size.update(latent, num_key_value_heads=of_size.get("num_attention_heads", 4))
    config = getattr(transformers, config_class)(**{**_COMMON, **own, **of_size})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
        elif "q_proj" in name or "k_proj" in name:
            parameter.data *= sharpness
    for parameter in model.parameters():  # buffers, such as the frequencies of rotations, stay in fp32
        parameter.data = parameter.data.to(dtype)
    return model.to(device)
