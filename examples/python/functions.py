"""The plain functions on torch's tensors: attention in its forms, a cache that is appended to, merges, and the keys of a sparse
attention. Needs PyTorch and a GPU."""

import sys

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch (pip install torch)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, PAGES = 32, 8, 128, 16, 64


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


# ---- A batch of sequences of one length, [batch, len, heads, head_dim]
q, k, v = randn(2, 512, Q_HEADS, HEAD_DIM), randn(2, 512, KV_HEADS, HEAD_DIM), randn(2, 512, KV_HEADS, HEAD_DIM)
o = attnsmith.attention(q, k, v, causal=True)
wanted = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                                          enable_gqa=True).transpose(1, 2)
torch.testing.assert_close(o, wanted, atol=2e-2, rtol=2e-2)

# ---- Sequences of 100, 412 and 512 tokens, one after the other
offsets = ints(0, 100, 512, 1024)
o = attnsmith.varlen_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), offsets, offsets, max_q_len=512, max_kv_len=512,
                               causal=True, window=(255, 0))
assert o.shape == (1024, Q_HEADS, HEAD_DIM)

# ---- A decode step: new keys are written into pages of 8 bits, and then read with the same scales
k_cache, v_cache = torch.zeros(2, PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.float8_e4m3fn)
k_scale, v_scale = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
page_table, kv_lens = torch.arange(PAGES, device="cuda", dtype=torch.int32).view(2, 32), ints(40, 7)
angles = torch.arange(512, device="cuda")[:, None] * 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
queries = randn(2, Q_HEADS, HEAD_DIM)
_, status = attnsmith.append(randn(2, KV_HEADS, HEAD_DIM), randn(2, KV_HEADS, HEAD_DIM), k_cache, v_cache, q=queries,
                             q_out=queries, page_order="NHD", slot_mapping=ints(39, 32 * PAGE_SIZE + 6), positions=ints(39, 6),
                             rope_table=torch.cat([angles.cos(), angles.sin()], dim=1).to(torch.bfloat16), k_scale=k_scale,
                             v_scale=v_scale, return_status=True)
assert not attnsmith.CallStatus(status)
o, lse = attnsmith.paged_attention(queries, (k_cache, v_cache), page_table, kv_lens, k_scale=k_scale, v_scale=v_scale,
                                    return_lse=True)
assert o.shape == queries.shape and lse.shape == (2, Q_HEADS)

# ---- Latent attention (MLA) over pages of 576 columns, as DeepSeek-V3 decodes
latents = randn(PAGES, PAGE_SIZE, 576)
o = attnsmith.mla_attention(randn(2, 128, 576), latents, page_table, kv_lens, scale=192 ** -0.5)
assert o.shape == (2, 128, 512)

# ---- A prefix that several prompts share is attended to once, and merged with the rest
prefix = attnsmith.attention(q, k[:, :128], v[:, :128], return_lse=True)
rest = attnsmith.attention(q, k[:, 128:], v[:, 128:], causal=True, return_lse=True)
merged, _ = attnsmith.merge_states([prefix[0][0], rest[0][0]], [prefix[1][0], rest[1][0]])
assert merged.shape == (512, Q_HEADS, HEAD_DIM)

# ---- The 64 keys with the largest scores of each query, in ascending order
scores = randn(2, 4096, dtype=torch.float32)
columns = attnsmith.top_k(scores, 64, row_ends=ints(4096, 1000))
assert torch.equal(columns[0], scores[0].topk(64).indices.sort().values.int())
print("all functions ran")
