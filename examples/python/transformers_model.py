"""A model of transformers that computes its attention with attnsmith. The model is small, with random weights, so nothing is
downloaded. Needs PyTorch, transformers 5 and a GPU."""

import sys

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    sys.exit("this example needs PyTorch and transformers 5 (pip install torch transformers)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith.transformers

attnsmith.transformers.register()  # with strict=True, what cannot be served is an error
attnsmith.transformers.reset()
config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     vocab_size=1000, attn_implementation="attnsmith")
model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16).eval()
prompt = torch.randint(0, 1000, (1, 16), device="cuda")
with torch.no_grad():
    logits = model(prompt).logits
print(f"logits {tuple(logits.shape)}")
report = attnsmith.transformers.report()
print(f"served: {report['served']}; passed on: {report['passed_on']}")
model.set_attn_implementation("sdpa")
attnsmith.transformers.unregister()
