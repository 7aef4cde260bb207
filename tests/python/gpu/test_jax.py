"""attnsmith.jax on a GPU, against an fp64 reference of numpy's."""

import math
import os
import unittest

import attnsmith

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # tests of other frameworks need memory, too

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError:
    jax = None


def why_not():
    """Why these tests cannot run here, or None."""
    if jax is None:
        return "JAX is not installed"
    try:
        if not jax.local_devices(backend="cuda"):
            return "JAX sees no GPU"
    except RuntimeError:
        return "JAX sees no GPU"
    try:
        attnsmith.jax.register()
    except attnsmith.LibraryMissing as error:
        return str(error)
    return None


def reference(q, k, v, causal=False, window=None, attention_chunk=None, softcap=None, scale=None, sinks=None, alibi_slopes=None):
    """One sequence: q [q_len, q_heads, d], k and v [kv_len, kv_heads, d] -> o and lse in fp64."""
    q, k, v = (np.asarray(one, np.float64) for one in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    i, j = np.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0], np.arange(k.shape[0])[None]
    if alibi_slopes is not None:
        scores = scores + np.asarray(alibi_slopes, np.float64)[:, None, None] * (j - i)
    left, right = window or (None, None)
    seen = np.full(scores.shape[1:], True)
    for hidden in (j > i if causal else None, j < i - left if left is not None else None,
                   j > i + right if right is not None else None,
                   j // attention_chunk != i // attention_chunk if attention_chunk is not None else None):
        if hidden is not None:
            seen &= ~hidden
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:
        sinks = np.broadcast_to(np.asarray(sinks, np.float64)[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, sinks], -1)
    most = scores.max(-1, keepdims=True)
    p = np.exp(scores - most)
    total = p.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", (p / total)[..., :k.shape[0]], v), (most + np.log(total))[..., 0].T


class JaxTest(unittest.TestCase):
    def setUp(self):
        super().setUp()
        reason = why_not()
        if reason:
            self.skipTest(reason)
        self.random = np.random.default_rng(sum(self.id().encode()))

    def randn(self, *shape, dtype=None):
        return jnp.asarray(self.random.standard_normal(shape, np.float32)).astype(dtype or jnp.bfloat16)

    def dense(self, batch=2, q_len=9, kv_len=20, dtype=None, dim=64, dim_vo=None, heads=(4, 2)):
        return (self.randn(batch, q_len, heads[0], dim, dtype=dtype), self.randn(batch, kv_len, heads[1], dim, dtype=dtype),
                self.randn(batch, kv_len, heads[1], dim_vo or dim, dtype=dtype))

    def assert_near(self, got, wanted):
        tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-2}[got.dtype.name]
        self.assertEqual(got.shape, wanted.shape)
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance)


class Calls(JaxTest):
    def test_eagerly_and_jitted(self):
        for dtype in (jnp.float16, jnp.bfloat16):
            q, k, v = self.dense(dtype=dtype)
            wanted = [np.stack(one) for one in zip(*[reference(*one, causal=True) for one in zip(q, k, v)])]

            def call(q, k, v):
                return attnsmith.jax.attention(q, k, v, causal=True, return_lse=True)
            for function in (call, jax.jit(call)):
                o, lse = function(q, k, v)
                self.assertEqual((o.dtype, lse.dtype), (q.dtype, np.float32))
                self.assert_near(o, wanted[0])
                self.assert_near(lse, wanted[1])
            self.assert_near(attnsmith.jax.attention(q, k, v, causal=True, o_dtype="fp32"), wanted[0])

    def test_words(self):
        vectors = {"sinks": self.randn(4, dtype=jnp.float32), "alibi_slopes": abs(self.randn(4, dtype=jnp.float32))}
        cases = [{"causal": True, "scale": 0.3}, {"window": (5, 0)}, {"window": (None, 3)}, {"window": (4, 2), "softcap": 2.0},
                 {"softcap": 30.0, "causal": True}, {"attention_chunk": 8, "causal": True}, {"sinks": True},
                 {"sinks": True, "causal": True, "window": (6, None)}, {"alibi_slopes": True, "causal": True}]
        for case in cases:
            with self.subTest(**case):
                q, k, v = self.dense()
                words = {name: vectors.get(name, value) for name, value in case.items()}
                arrays = {name: words[name] for name in vectors if name in words}
                others = {name: value for name, value in words.items() if name not in vectors}
                o, lse = jax.jit(lambda q, k, v, arrays, others=others: attnsmith.jax.attention(
                    q, k, v, return_lse=True, **arrays, **others))(q, k, v, arrays)
                wanted = [np.stack(one) for one in zip(*[reference(*one, **words) for one in zip(q, k, v)])]
                self.assert_near(o, wanted[0])
                self.assert_near(lse, wanted[1])

    def test_shapes(self):
        for case in ({"dim": 8}, {"dim": 72}, {"dim": 128, "heads": (8, 8)}, {"dim": 256, "heads": (6, 1)}, {"dim": 192, "dim_vo": 128},
                     {"q_len": 1, "kv_len": 700, "dim": 128}, {"q_len": 200, "kv_len": 200}, {"batch": 1, "q_len": 20, "kv_len": 7}):
            with self.subTest(**case):
                q, k, v = self.dense(**case)
                o, lse = jax.jit(lambda q, k, v: attnsmith.jax.attention(q, k, v, return_lse=True, lse_order="HND"))(q, k, v)
                wanted = [np.stack(one) for one in zip(*[reference(*one) for one in zip(q, k, v)])]
                self.assert_near(o, wanted[0])
                self.assert_near(lse, wanted[1].swapaxes(1, 2))

    def test_lengths_of_rows(self):
        """One program is right for any lengths, and leaves the rows behind the queries alone."""
        q, k, v = self.dense()
        call = jax.jit(lambda q_lens, kv_lens: attnsmith.jax.attention(q, k, v, causal=True, q_lens=q_lens, kv_lens=kv_lens))
        for q_lens, kv_lens in (((9, 9), (20, 20)), ((3, 1), (5, 19)), ((9, 2), (9, 2))):
            with self.subTest(q_lens=q_lens, kv_lens=kv_lens):
                o = call(jnp.array(q_lens, jnp.int32), jnp.array(kv_lens, jnp.int32))
                for b, (queries, keys) in enumerate(zip(q_lens, kv_lens)):
                    self.assert_near(o[b, :queries], reference(q[b, :queries], k[b, :keys], v[b, :keys], causal=True)[0])

    def test_exported_programs(self):
        from jax import export
        q, k, v = self.dense()
        exported = export.export(jax.jit(attnsmith.jax.attention), disabled_checks=[
            export.DisabledSafetyCheck.custom_call("attnsmith_attention")])(q, k, v)
        again = export.deserialize(exported.serialize())
        self.assert_near(again.call(q, k, v), np.stack([reference(*one)[0] for one in zip(q, k, v)]))

    def test_gradients_are_refused(self):
        q, k, v = self.dense()
        with self.assertRaises(attnsmith.Unsupported):
            jax.grad(lambda q: attnsmith.jax.attention(q, k, v).astype(jnp.float32).sum())(q)

    def test_many_keys(self):
        """Divided among CTAs, which count in the head of the workspace. Others write to XLA's memory between runs."""
        q, k, v = self.dense(batch=1, q_len=1, kv_len=16384)
        wanted = reference(q[0], k[0], v[0])[0][None]
        call = jax.jit(attnsmith.jax.attention)
        for _ in range(5):
            self.assert_near(call(q, k, v), wanted)
            jnp.full((64 << 20,), -1, jnp.int32).block_until_ready()

    def test_ragged_and_pages(self):
        q, k, v = (one[0] for one in self.dense(batch=1, q_len=12, kv_len=32))
        wanted = np.concatenate([reference(q[:4], k[:10], v[:10])[0], reference(q[4:], k[10:], v[10:])[0]])
        o = jax.jit(attnsmith.jax.varlen_attention)(q, k, v, jnp.array([0, 4, 12]), jnp.array([0, 10, 32]))
        self.assert_near(o, wanted)
        cache = jnp.stack([k.reshape(2, 16, 2, 64), v.reshape(2, 16, 2, 64)], 1)
        o = jax.jit(attnsmith.jax.paged_attention)(q[:2], cache, jnp.array([[1, 0], [0, 1]]), jnp.array([20, 5]))
        swapped = [jnp.concatenate([one[16:], one[:16]]) for one in (k, v)]
        self.assert_near(o, np.concatenate([reference(q[:1], swapped[0][:20], swapped[1][:20])[0],
                                            reference(q[1:2], k[:5], v[:5])[0]]))

    def test_vmap(self):
        q, k, v = (jnp.stack([one, one[::-1]]) for one in self.dense())
        o = jax.jit(jax.vmap(attnsmith.jax.attention))(q, k, v)
        for i in range(2):
            self.assert_near(o[i], np.stack([reference(*one)[0] for one in zip(q[i], k[i], v[i])]))


class CommandBuffers(JaxTest):
    """XLA captures programs of several operations, and captures them anew as buffers move."""

    def test_layers(self):
        q, k, v = self.dense(q_len=1, kv_len=300)

        @jax.jit
        def layers(q):
            for _ in range(8):
                q = attnsmith.jax.attention(q, k, v) * 2
            return q
        wanted = q
        for _ in range(8):
            wanted = (jnp.asarray(np.stack([reference(*one)[0] for one in zip(wanted, k, v)])) * 2).astype(q.dtype)
        for _ in range(5):
            self.assert_near(layers(q), np.asarray(wanted, np.float64))

    def test_a_scan_over_growing_lengths(self):
        q, k, v = self.dense(q_len=1, kv_len=40)

        def step(lens, _):
            return lens + 1, attnsmith.jax.attention(q, k, v, kv_lens=lens)
        scan = jax.jit(lambda lens: jax.lax.scan(step, lens, length=10))
        for first in ((3, 30), (1, 17)):
            lens, o = scan(jnp.array(first, jnp.int32))
            self.assertEqual(list(lens), [one + 10 for one in first])
            for i in range(10):
                self.assert_near(o[i], np.stack([reference(q[b], k[b, :first[b] + i], v[b, :first[b] + i])[0]
                                                 for b in range(2)]))

    def test_donated_and_moving_buffers(self):
        q, k, v = self.dense(q_len=1, kv_len=64)
        wanted = np.stack([reference(*one)[0] for one in zip(q, k, v)])
        step = jax.jit(lambda q, k, v: (attnsmith.jax.attention(q, k, v), k + 0, v + 0), donate_argnums=(1, 2))
        held = []
        for i in range(6):
            o, k, v = step(q, k, v)
            self.assert_near(o, wanted)
            held.append(jnp.ones(1000 * (i + 1)))


if __name__ == "__main__":
    unittest.main()
