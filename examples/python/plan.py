"""Which kernels a problem gets on an H100, why, and what was refused. Needs neither a GPU nor torch."""

import attnsmith

print(f"attnsmith {attnsmith.__version__}: {len(attnsmith.features())} features")

request: attnsmith.Request = {"head_dim": 128, "q_heads": 32, "kv_heads": 8, "mask": "causal", "kv": "paged", "page_size": 16,
                             "batch": 8, "q_len": 1024, "kv_len": 4096}
plan: attnsmith.Plan = attnsmith.plan(**request, sm=90)
for kernel in plan["kernels"]:
    print(f"{kernel['role']}: {kernel['name']} for {kernel['target']}, "
          f"{kernel['resources']['predicted']['shared_bytes']} bytes of shared memory")
for refusal in plan["rejected"][:3]:
    print(f"not {refusal['candidate']}: {refusal['reason']}")

# All attentions of a model, from its config.json: a file, a folder, the text, a dict, or a config object of transformers.
config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
          "num_hidden_layers": 32}
for one in attnsmith.plan_model(config, sm=[80, 90])["plans"]:
    print(f"{one.get('model', {}).get('name')} on SM {one['device']['sm']}: {one['kernels'][0]['name']}")

try:
    attnsmith.plan(head_dim=100, q_heads=32, sm=90)
except attnsmith.InvalidRequest as error:
    print(f"{error.field} = {error.value}: {error.accepted}")
except attnsmith.Unsupported as error:
    print(error)
