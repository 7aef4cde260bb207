"""attnsmith's functions in a program that jax.jit compiles. Needs JAX, a GPU and a wheel that was built with JAX's headers."""

import sys
from typing import Any

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    sys.exit("this example needs JAX (pip install 'jax[cuda13]')")
if not any(device.platform == "gpu" for device in jax.devices()):
    sys.exit("this example needs a GPU")

import attnsmith.jax

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, PAGES = 8, 2, 64, 16, 8


def randn(*shape: int) -> Any:
    return jax.random.normal(jax.random.key(len(shape)), shape, jnp.bfloat16)


@jax.jit
def prefill(q: Any, k: Any, v: Any, kv_lens: Any) -> Any:
    return attnsmith.jax.attention(q, k, v, causal=True, kv_lens=kv_lens)


@jax.jit
def packed(q: Any, k: Any, v: Any, offsets: Any) -> Any:
    return attnsmith.jax.varlen_attention(q, k, v, offsets, offsets, max_q_len=40, max_kv_len=40, causal=True)


@jax.jit
def decode(q: Any, k_cache: Any, v_cache: Any, page_table: Any, kv_lens: Any) -> Any:
    return attnsmith.jax.paged_attention(q, (k_cache, v_cache), page_table, kv_lens)


k = randn(2, 128, KV_HEADS, HEAD_DIM)
o = prefill(randn(2, 128, Q_HEADS, HEAD_DIM), k, k, jnp.array([128, 77], jnp.int32))
rows = randn(64, KV_HEADS, HEAD_DIM)
o = packed(randn(64, Q_HEADS, HEAD_DIM), rows, rows, jnp.array([0, 24, 64], jnp.int32))
cache = randn(PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM)
page_table = jnp.arange(PAGES, dtype=jnp.int32).reshape(2, 4)
o = decode(randn(2, Q_HEADS, HEAD_DIM), cache, cache, page_table, jnp.array([50, 9], jnp.int32))
print(f"o {o.shape} of {o.dtype}")

# A program that jax.export has stored calls this before it runs in a process that has lowered nothing.
attnsmith.jax.register()
