"""FlashAttention's functions, computed by attnsmith: packed and padded batches, a cache that grows, and programs that
import flash_attn by themselves. Needs PyTorch and a GPU."""

import importlib
import sys

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch (pip install torch)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith.compat.flash_attn as flash_attn
from attnsmith.compat.flash_attn.bert_padding import pad_input, unpad_input

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


# ---- One length: [batch, seqlen, heads, head_dim], or queries, keys and values in one tensor
q, k, v = randn(2, 128, HEADS, HEAD_DIM), randn(2, 128, KV_HEADS, HEAD_DIM), randn(2, 128, KV_HEADS, HEAD_DIM)
o = flash_attn.flash_attn_func(q, k, v, causal=True)
same = flash_attn.flash_attn_kvpacked_func(q, torch.stack([k, v], dim=2), causal=True)
torch.testing.assert_close(o, same)
o = flash_attn.flash_attn_qkvpacked_func(randn(2, 128, 3, HEADS, HEAD_DIM), window_size=(63, 0), causal=True)

# ---- Sequences of 100 and 128 tokens, without their padding
mask = torch.ones(2, 128, device="cuda", dtype=torch.int32)
mask[0, 100:] = 0
rows, indices, offsets, longest, _ = unpad_input(q, mask)
keys, values = unpad_input(k, mask)[0], unpad_input(v, mask)[0]
o = flash_attn.flash_attn_varlen_func(rows, keys, values, offsets, offsets, longest, longest, causal=True)
same = flash_attn.flash_attn_varlen_kvpacked_func(rows, torch.stack([keys, values], dim=1), offsets, offsets, longest, longest,
                                                  causal=True)
torch.testing.assert_close(o, same)
o = pad_input(o, indices, 2, 128)
o = flash_attn.flash_attn_varlen_qkvpacked_func(randn(228, 3, HEADS, HEAD_DIM), offsets, longest, causal=True)

# ---- A decode step: new keys are written into the cache and attended to, in place
k_cache, v_cache = randn(2, 256, KV_HEADS, HEAD_DIM), randn(2, 256, KV_HEADS, HEAD_DIM)
lengths = torch.tensor([17, 128], device="cuda", dtype=torch.int32)
flash_attn.get_scheduler_metadata()  # a hint for FlashAttention, which attnsmith does not need
o = flash_attn.flash_attn_with_kvcache(randn(2, 1, HEADS, HEAD_DIM), k_cache, v_cache, randn(2, 1, KV_HEADS, HEAD_DIM),
                                       randn(2, 1, KV_HEADS, HEAD_DIM), cache_seqlens=lengths, causal=True)
print(f"out {tuple(o.shape)}")

# ---- A program that imports flash_attn by itself
flash_attn.install(replace=True)
found = importlib.import_module("flash_attn")  # what "import flash_attn" imports
print(f"flash_attn {found.__version__} is attnsmith's: {'attnsmith' in str(found.__file__)}")
flash_attn.uninstall()
