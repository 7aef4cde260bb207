"""FlashInfer's functions and wrappers, computed by attnsmith: plan() once for a batch, run() for each layer. Needs
PyTorch and a GPU."""

import sys
from typing import Tuple

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch (pip install torch)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith.compat.flashinfer as flashinfer

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, PAGES = 8, 2, 64, 16, 8
SIZES = (HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


workspace = torch.empty(1 << 20, device="cuda", dtype=torch.uint8)

# ---- Two sequences of 40 and 9 tokens in pages; two new tokens of the first and one of the second are written there
indptr, pages, last = ints(0, 3, 4), ints(2, 5, 1, 7), ints(8, 9)
cache = randn(PAGES, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)
lengths = flashinfer.get_seq_lens(indptr, last, PAGE_SIZE)
where: Tuple[torch.Tensor, torch.Tensor] = flashinfer.get_batch_indices_positions(ints(0, 2, 3), lengths, 3)
flashinfer.append_paged_kv_cache(randn(3, KV_HEADS, HEAD_DIM), randn(3, KV_HEADS, HEAD_DIM), *where, cache, pages, indptr, last)

# ---- Decode: one query a sequence; in a captured graph with buffers that later plans write to
decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
decode.plan(indptr, pages, last, *SIZES)
o = decode.run(randn(2, HEADS, HEAD_DIM), cache)
flashinfer.fast_decode_plan(decode, indptr, pages, last, *SIZES)
graphs = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace, ints(0, 0, 0), ints(*[0] * PAGES), ints(0, 0))
graphs.plan(indptr, pages, last, *SIZES)
o = graphs.run(randn(2, HEADS, HEAD_DIM), cache)

# ---- Prefill: two and one queries, over pages, with sinks, and over keys that lie one after the other
prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
prefill.plan(ints(0, 2, 3), indptr, pages, last, *SIZES, causal=True)
o = prefill.run(randn(3, HEADS, HEAD_DIM), cache)
sinks = flashinfer.BatchAttentionWithAttentionSinkWrapper(workspace, window_left=9, q_data_type=torch.float16)
sinks.plan(ints(0, 2, 3), indptr, pages, last, *SIZES, causal=True, window_left=9)
o = sinks.run(randn(3, HEADS, HEAD_DIM), cache, torch.zeros(HEADS, device="cuda"), HEAD_DIM ** -0.5)
ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
ragged.plan(ints(0, 2, 3), ints(0, 40, 49), HEADS, KV_HEADS, HEAD_DIM, causal=True)
o = ragged.run(randn(3, HEADS, HEAD_DIM), randn(49, KV_HEADS, HEAD_DIM), randn(49, KV_HEADS, HEAD_DIM))

# ---- A prefix that sequences share: as a level of its own, or as tensors of its own
cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace)
cascade.plan([ints(0, 2), ints(0, 1, 2)], [ints(0, 2), ints(0, 1, 2)], [ints(2, 5), ints(1, 7)], [ints(16), ints(8, 9)], *SIZES)
o = cascade.run(randn(2, HEADS, HEAD_DIM), cache)
shared = randn(32, KV_HEADS, HEAD_DIM)
shared_decode = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(workspace)
shared_decode.begin_forward(indptr, pages, last, *SIZES)
o = shared_decode.forward(randn(2, HEADS, HEAD_DIM), shared, shared, cache)
shared_prefill = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(workspace)
shared_prefill.begin_forward(ints(0, 2, 3), indptr, pages, last, *SIZES)
o = shared_prefill.forward(randn(3, HEADS, HEAD_DIM), shared, shared, cache, causal=True)

# ---- One sequence, and merges of partial results; a log-sum-exp is in base 2 here
keys = randn(40, KV_HEADS, HEAD_DIM)
o = flashinfer.single_decode_with_kv_cache(randn(HEADS, HEAD_DIM), keys, keys)
q = randn(5, HEADS, HEAD_DIM)
o = flashinfer.single_prefill_with_kv_cache(q, keys, keys, causal=True)
first, first_lse = flashinfer.single_prefill_with_kv_cache_return_lse(q, keys[:20], keys[:20])
rest, rest_lse = flashinfer.single_prefill_with_kv_cache_return_lse(q, keys[20:], keys[20:], causal=True)
merged, lse = flashinfer.merge_state(first, first_lse, rest, rest_lse)
torch.testing.assert_close(merged, o, atol=2e-2, rtol=2e-2)
merged, lse = flashinfer.merge_states(torch.stack([first, rest], dim=1), torch.stack([first_lse, rest_lse], dim=1))
flashinfer.merge_state_in_place(first, first_lse, rest, rest_lse)
torch.testing.assert_close(first, merged, atol=2e-2, rtol=2e-2)

# ---- Latent attention (MLA): appends and decodes
ckv, kpe = randn(PAGES, PAGE_SIZE, 512), randn(PAGES, PAGE_SIZE, 64)
flashinfer.append_paged_mla_kv_cache(randn(3, 512), randn(3, 64), *where, ckv, kpe, pages, indptr, last)
mla = flashinfer.BatchMLAPagedAttentionWrapper(workspace)
mla.plan(ints(0, 1, 2), indptr, pages, lengths, 16, 512, 64, PAGE_SIZE, True, 192 ** -0.5, torch.float16, torch.float16)
o = mla.run(randn(2, 16, 512), randn(2, 16, 64), ckv, kpe)
print("all wrappers ran")
