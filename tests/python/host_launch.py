"""A launch on the host, in the place of libattnsmith's: computed by torch in fp64 from the pointers, shapes and strides
that attnsmith_bind and attnsmith_call_launch_at are given. For tests of what calls them."""

import ctypes
import math

import torch
from attnsmith._c_api import abi

_BIND = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 6)
_LAUNCH_AT = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
FIELDS = abi.TENSOR_FIELDS + abi.BATCH_FIELDS
_KINDS = {(2, 64): torch.float64, (2, 32): torch.float32, (0, 32): torch.int32, (4, 16): torch.bfloat16}


def _described(address):
    """data, dtype, shape and strides of a DLTensor."""
    tensor = abi.Tensor.from_address(address)
    return (tensor.data, _KINDS[tensor.dtype.code, tensor.dtype.bits], tensor.shape[:tensor.ndim],
            tensor.strides[:tensor.ndim])


def _tensor(data, kind, shape, strides):
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    return torch.frombuffer((ctypes.c_char * (reach * kind.itemsize)).from_address(data), dtype=kind).as_strided(shape, strides)


def by_hand(q, k, v, causal, scale):
    """[batch, tokens, heads, head_dim] -> o like q, lse [batch, tokens, heads]."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        ahead = torch.arange(k.shape[2])[None] - (torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(ahead > 0, -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2), torch.logsumexp(scores, -1).transpose(1, 2)


class HostLaunch:
    """`options`: (causal, scale) by kernel. `launches` tells of each its kernel, bytes of workspace and longest sequences.
    `code`: what launches give back; `bind_code` likewise."""

    def __init__(self):
        self.options, self.bound, self.launches, self.errors_freed = {}, {}, [], []
        self.code = self.bind_code = self.binds = 0
        self._kept = _BIND(self._bind), _LAUNCH_AT(self._launch_at), _FREE(self._free), _FREE(self.errors_freed.append)
        #: In the order of attnsmith._calls.lent.LAUNCHING.
        self.addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._kept]

    def _bind(self, kernel, tensors, batch, workspace, call, error):
        if self.bind_code:
            ctypes.c_void_p.from_address(error).value = 78
            return self.bind_code
        tensors, batch = abi.Tensors.from_address(tensors), abi.Batch.from_address(batch)
        given = {name: getattr(tensors if name in abi.TENSOR_FIELDS else batch, name) for name in FIELDS}
        self.binds += 1
        self.bound[self.binds] = (kernel, abi.Workspace.from_address(workspace).bytes, batch.max_q_len, batch.max_kv_len,
                                  {name: _described(at) for name, at in given.items() if at})
        ctypes.c_void_p.from_address(call).value = self.binds
        return 0

    def _free(self, call):
        del self.bound[call]

    def _launch_at(self, call, addresses, stream, error):
        kernel, nbytes, max_q, max_kv, tensors = self.bound[call]
        self.launches.append((kernel, nbytes, max_q, max_kv))
        if self.code:
            ctypes.c_void_p.from_address(error).value = 77
            return self.code
        at = abi.TensorAddresses.from_address(addresses)
        named = {name: _tensor(getattr(at, name, None) or data, *rest) for name, (data, *rest) in tensors.items()}
        q, k, v, o = (named[name] for name in ("q", "k", "v", "o"))
        lse = named.get("lse", torch.empty(o.shape[:-1]))
        causal, scale = self.options[kernel]
        if "q_indptr" in named:
            ends, kv_ends = named["q_indptr"].tolist(), named["kv_indptr"].tolist()
            for rows, keys in zip(map(slice, ends, ends[1:]), map(slice, kv_ends, kv_ends[1:])):
                one = by_hand(q[None, rows], k[None, keys], v[None, keys], causal, scale)
                o[rows], lse[rows] = one[0][0], one[1][0]
        else:
            found = by_hand(q, k, v, causal, scale)
            o.copy_(found[0])
            lse.copy_(found[1])
        return 0
