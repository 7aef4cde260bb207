"""Without a GPU and without torch: which kernels a problem gets on an H100, why, and what was refused."""

import attnsmith

plan = attnsmith.plan(head_dim=128, q_heads=32, kv_heads=8, mask="causal", kv="paged", page_size=16,
                      batch=8, q_len=1024, kv_len=4096, sm=90)
for kernel in plan["kernels"]:
    print(f"{kernel['role']}: {kernel['name']}")

try:
    attnsmith.plan(head_dim=100, q_heads=32, sm=90)
except attnsmith.InvalidRequest as error:
    print(f"{error.field} = {error.value}: {error.accepted}")
except attnsmith.Unsupported as error:
    print(error)
