"""Tensors of CuPy, JAX and attnsmith itself: the same answers, in the caller's own kind of tensor."""

import os
import unittest

from gpu_support import DEVICE, GpuTest, reference, torch

import attnsmith

try:
    import cupy
except ImportError:
    cupy = None
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax leaves memory to torch
try:
    import jax
except ImportError:
    jax = None


class Frameworks(GpuTest):
    def inputs(self, dtype):
        q, k, v = self.randn(2, 9, 4, 64, dtype=dtype), self.randn(2, 20, 2, 64, dtype=dtype), \
            self.randn(2, 20, 2, 64, dtype=dtype)
        wanted = [reference(q[b], k[b], v[b], causal=True) for b in range(2)]
        torch.cuda.synchronize()
        return (q, k, v), torch.stack([o for o, _ in wanted]), torch.stack([lse for _, lse in wanted])

    def near(self, o, lse, o_wanted, lse_wanted):
        self.assert_near(o, o_wanted)
        self.assert_near(lse, lse_wanted)

    @unittest.skipIf(cupy is None, "cupy is not installed")
    def test_cupy(self):
        tensors, *wanted = self.inputs(torch.float16)
        arrays = [cupy.asarray(tensor) for tensor in tensors]
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
            with stream:
                o, lse = attnsmith.attention(*arrays, causal=True, return_lse=True)
                strided = cupy.ascontiguousarray(arrays[0].transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
                again = attnsmith.attention(strided, *arrays[1:], causal=True, out=cupy.empty_like(arrays[0]))
            stream.synchronize()
            self.assertIsInstance(o, cupy.ndarray)
            self.assertEqual(o.dtype, cupy.float16)
            self.near(torch.as_tensor(o, device=DEVICE), torch.as_tensor(lse, device=DEVICE), *wanted)
            self.assert_near(torch.as_tensor(again, device=DEVICE), wanted[0])
        o = attnsmith.attention(*arrays, causal=True, o_dtype="fp32")
        out = attnsmith.attention(*arrays, causal=True, out=cupy.empty(o.shape, cupy.float32))
        cupy.cuda.Stream.null.synchronize()
        self.assertEqual((o.dtype, type(o)), (cupy.float32, cupy.ndarray))
        self.assert_near(torch.as_tensor(o, device=DEVICE), wanted[0])
        self.assertTrue(cupy.array_equal(o, out))
        other = cupy.cuda.Stream(non_blocking=True)
        o = attnsmith.attention(*arrays, causal=True, stream=other)
        other.synchronize()
        self.assert_near(torch.as_tensor(o, device=DEVICE), wanted[0])

    @unittest.skipIf(cupy is None, "cupy is not installed")
    def test_cupy_with_lengths(self):
        (q, k, v), _, _ = self.inputs(torch.float16)
        kv_lens = cupy.asarray([20, 3], dtype=cupy.int32)
        o = attnsmith.attention(*(cupy.asarray(tensor) for tensor in (q, k, v)), kv_lens=kv_lens)
        cupy.cuda.Stream.null.synchronize()
        self.assert_near(torch.as_tensor(o[1], device=DEVICE), reference(q[1], k[1, :3], v[1, :3])[0])

    @unittest.skipIf(jax is None, "jax is not installed")
    def test_jax(self):
        current = torch.cuda.current_device()
        found = jax.devices()  # the first time it makes one GPU after the other the current one, and leaves the last
        torch.cuda.set_device(current)
        if not any(device.platform in ("gpu", "cuda") for device in found):
            self.skipTest("jax sees no GPU")
        for dtype in (torch.float16, torch.bfloat16):
            tensors, *wanted = self.inputs(dtype)
            arrays = [jax.dlpack.from_dlpack(tensor) for tensor in tensors]
            o, lse = attnsmith.attention(*arrays, causal=True, return_lse=True)
            self.assertIsInstance(o, jax.Array)
            self.near(torch.from_dlpack(o), torch.from_dlpack(lse), *wanted)
            o = attnsmith.attention(*arrays, causal=True, o_dtype="fp32")
            self.assertEqual((o.dtype, isinstance(o, jax.Array)), (jax.numpy.float32, True))
            self.assert_near(torch.from_dlpack(o), wanted[0])

    def test_own_arrays(self):
        runtime = attnsmith.default_runtime()
        tensors, *wanted = self.inputs(torch.bfloat16)
        arrays = []
        for tensor in tensors:
            buffer = runtime.allocate(tensor.numel() * 2)
            buffer.upload(bytes(tensor.cpu().view(torch.uint8).flatten().tolist()))
            arrays.append(buffer.array(tensor.shape, "bf16"))
        o, lse = attnsmith.attention(*arrays, causal=True, return_lse=True)
        self.assertEqual((type(o), o.dtype, lse.dtype), (attnsmith.Array, "bf16", "fp32"))
        runtime.synchronize()
        self.near(torch.from_dlpack(o), torch.from_dlpack(lse), *wanted)
        o = attnsmith.attention(*arrays, causal=True, o_dtype="fp32")
        self.assertEqual((type(o), o.dtype), (attnsmith.Array, "fp32"))
        runtime.synchronize()
        self.assert_near(torch.from_dlpack(o), wanted[0])

    def test_dlpack_alone(self):
        """An object of no known framework, with __dlpack__ and nothing else."""
        tensors, *wanted = self.inputs(torch.bfloat16)

        class Plain:
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

            def __dlpack__(self, stream=None):
                return self.tensor.__dlpack__(stream=stream)

        o, lse = attnsmith.attention(*map(Plain, tensors), causal=True, return_lse=True)
        self.near(torch.from_dlpack(o), torch.from_dlpack(lse), *wanted)

    def test_a_torch_query_with_other_keys(self):
        (q, k, v), o_wanted, _ = self.inputs(torch.bfloat16)
        runtime = attnsmith.default_runtime()
        buffer = runtime.allocate(8)
        buffer.upload(bytes([20, 0, 0, 0] * 2))
        o = attnsmith.attention(q, k, v, causal=True, kv_lens=buffer.array([2], "int32"))
        self.assert_near(o, o_wanted)


if __name__ == "__main__":
    unittest.main()
