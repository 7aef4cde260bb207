"""Decodes with torch's tensors over a paged KV cache, as an engine does: prepare, bind, capture, replay. Needs
PyTorch and a GPU."""

import sys

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch (pip install torch)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith

BATCH, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, PAGES_EACH = 4, 32, 8, 128, 16, 64

cuda = {"device": "cuda", "dtype": torch.bfloat16}
q = torch.randn(BATCH, 1, Q_HEADS, HEAD_DIM, **cuda)
k_cache, v_cache = torch.randn(2, BATCH * PAGES_EACH, PAGE_SIZE, KV_HEADS, HEAD_DIM, **cuda)
table = torch.arange(BATCH * PAGES_EACH, device="cuda", dtype=torch.int32).view(BATCH, PAGES_EACH)
kv_lens = torch.tensor([1000, 17, 1, 512], device="cuda", dtype=torch.int32)

# In one line: compiled or loaded at the first call, looked up after.
expected = attnsmith.paged_attention(q, (k_cache, v_cache), table, kv_lens)

# In steps: nothing is looked up or allocated any more, and a graph is right as the lengths change.
kernel = attnsmith.default_runtime().prepare(head_dim=HEAD_DIM, q_heads=Q_HEADS, kv_heads=KV_HEADS, kv="paged",
                                             page_size=PAGE_SIZE, batch=BATCH, q_len=1, kv_len=PAGES_EACH * PAGE_SIZE)
o = torch.empty_like(q)
call = kernel.bind(q=q, k=k_cache, v=v_cache, o=o, page_table=table, kv_lens=kv_lens)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    call.launch()
graph.replay()
torch.testing.assert_close(o, expected)
kv_lens += 1  # a token later
graph.replay()
torch.testing.assert_close(o, attnsmith.paged_attention(q, (k_cache, v_cache), table, kv_lens))
print("captured once, right twice")
