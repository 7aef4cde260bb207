#!/usr/bin/env python3
"""What a call from Python costs the host, with torch on a GPU: python_overhead.py [--calls N] [--rounds N] [--json].

The problems are tiny, so that the GPU is never behind. Each round enqueues CALLS calls of one case and waits outside of
the timed part; rounds go over all cases in turn, so that a disturbance of the host meets all of them. Printed are the
median and the least over the rounds, in microseconds a call, and the same as multiples of an empty call through ctypes:
hosts differ several times over, these multiples much less. "for scale" are costs that no binding gets below. Beside
them stand FlashAttention-3's and FlashInfer's own functions where PYTHONPATH has them. The installed
wheel is measured, or the build that the variables in tools/python/README.md name.
"""

import argparse
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import statistics
import sys
import time

from launches import SKIPPED, import_attnsmith, is_skipped, torch
from peers.providers import PROVIDERS


SCALE = "empty ctypes call, for scale"


ACTIVATED = "after activate(): "


@contextlib.contextmanager
def around(attnsmith, name):
    """What a case runs in."""
    if not name.startswith(ACTIVATED):
        yield
        return
    attnsmith.torch.activate(strict=True)
    try:
        yield
    finally:
        attnsmith.torch.deactivate()


def measure(attnsmith, functions, calls, rounds):
    """Microseconds a call: {name: (median, least)}."""
    times = {name: [] for name in functions}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, function in functions.items():
                with around(attnsmith, name):
                    for _ in range(20):
                        function()
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(calls):
                        function()
                    times[name].append((time.perf_counter() - start) / calls * 1e6)
                    torch.cuda.synchronize()
    finally:
        gc.enable()
    return {name: (statistics.median(some), min(some)) for name, some in times.items()}


def empty_call(attnsmith):
    """A C function that does nothing, with as many arguments as a plain function's launch has."""
    function = attnsmith.default_runtime()._library.functions["attnsmith_abi_version"]  # ignores them
    function.argtypes, function.restype = [ctypes.c_void_p] * 6, ctypes.c_int
    arguments = [ctypes.c_void_p(64)] * 6
    return lambda: function(*arguments)


def bare_launch(call, stream):
    """attnsmith_launch and nothing around it: what the library and the driver take of the cases."""
    function, pointer = call._library.functions.attnsmith_launch, ctypes.c_void_p(call._pointer.value)
    error, stream = ctypes.byref(ctypes.c_void_p()), ctypes.c_void_p(stream)
    return lambda: function(pointer, stream, error)


def peer(name):
    """The peer's module; None, and a line that says why, where it cannot be had."""
    provider = PROVIDERS[name]
    missing = provider.available()
    if missing is None:
        return provider.module()
    print(f"{provider.title} is left out: {missing}", file=sys.stderr)
    return None


def layouts():
    """What models give to scaled_dot_product_attention: {name: ((q, k, v), is_causal)}."""
    def tokens_first(batch, heads, length, dim):
        return [torch.randn(batch, length, heads, dim, device="cuda").bfloat16().transpose(1, 2) for _ in range(3)]

    heads_first = [tensor.contiguous() for tensor in tokens_first(2, 4, 320, 128)]
    packed = torch.randn(8, 197, 3, 12, 64, device="cuda").bfloat16()
    return {"2x4x320x128": (heads_first, False), "2x4x320x128 causal": (heads_first, True),
            "tokens first": (tokens_first(2, 4, 320, 128), False), "causal, tokens first": (tokens_first(4, 32, 16, 128), True),
            "8x12x197x64 packed": ([packed[:, :, i].transpose(1, 2) for i in range(3)], False),
            "1x16x77x64": (tokens_first(1, 16, 77, 64), False)}


def cases(attnsmith):
    def randn(*shape):
        return torch.randn(shape, device="cuda").bfloat16()

    batch, heads, kv_heads, dim, pages = 4, 32, 8, 128, 4
    q, kv = randn(batch, heads, dim), randn(batch * pages, 2, 16, kv_heads, dim)
    table = torch.arange(batch * pages, dtype=torch.int32, device="cuda").view(batch, pages)
    kv_lens = torch.full((batch,), 50, dtype=torch.int32, device="cuda")
    o = torch.empty_like(q)
    dense_q, dense_k = randn(1, 16, heads, dim), randn(1, 16, kv_heads, dim)
    dense_o = torch.empty_like(dense_q)
    kernel = attnsmith.default_runtime().prepare(head_dim=dim, q_heads=heads, kv_heads=kv_heads, mask="causal", batch=1,
                                                 q_len=16, kv_len=16)
    call = kernel.bind(dense_q, dense_k, dense_k, dense_o)
    kernels = attnsmith.default_runtime().prepare_set(head_dim=dim, q_heads=heads, kv_heads=kv_heads, mask="causal")
    workspace = attnsmith.default_runtime().allocate(kernel.workspace_bytes(batch=1, q_tokens=16, max_kv_len=16))
    stream, address = torch.cuda.current_stream().cuda_stream, dense_k.data_ptr()
    swapped_q, swapped_k = dense_q.transpose(1, 2), dense_k.transpose(1, 2)
    operator = torch.ops.attnsmith.attention
    sdpa, own = torch.nn.functional.scaled_dot_product_attention, attnsmith.torch.scaled_dot_product_attention
    # Graphs of one call, which torch's inductor runs: those of SDPA name torch's operator, whose kernel is switched.
    graphs = {name: torch.compile(function, dynamic=False) for name, function in (
        ("attention", lambda q, k, v: attnsmith.attention(q, k, v, causal=True)),
        ("sdpa", lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True)))}
    peers, flash, flashinfer = {}, peer("fa3"), peer("flashinfer")
    if flash:
        peers["FlashAttention-3, flash_attn_func"] = lambda: flash.flash_attn_func(dense_q, dense_k, dense_k, causal=True)
        peers["FlashAttention-3, paged decode"] = lambda: flash.flash_attn_with_kvcache(
            q[:, None], kv[:, 0], kv[:, 1], cache_seqlens=kv_lens, page_table=table, causal=True)
    if flashinfer:
        peers["FlashInfer, single prefill"] = lambda: flashinfer.single_prefill_with_kv_cache(
            dense_q[0], dense_k[0], dense_k[0], causal=True)
    return {
        SCALE: empty_call(attnsmith),
        "bare launch, for scale": bare_launch(call, stream),
        "Call.launch()": call.launch,
        "Call.launch(stream)": lambda: call.launch(stream),
        "Call.launch(k=, v=), addresses": lambda: call.launch(k=address, v=address),
        "Call.launch(k=, v=), tensors": lambda: call.launch(k=dense_k, v=dense_k),
        "KernelSet.pick()": lambda: kernels.pick(1, 16, 16),
        "Kernel.bind(workspace=)": lambda: kernel.bind(dense_q, dense_k, dense_k, dense_o, workspace=workspace),
        "attention(out=)": lambda: attnsmith.attention(dense_q, dense_k, dense_k, causal=True, out=dense_o),
        "torch.ops.attnsmith.attention": lambda: operator(dense_q, dense_k, dense_k, causal=True),
        "attention()": lambda: attnsmith.attention(dense_q, dense_k, dense_k, causal=True),
        "paged_attention(out=), decode": lambda: attnsmith.paged_attention(q, kv, table, kv_lens, out=o),
        "paged_attention(), decode": lambda: attnsmith.paged_attention(q, kv, table, kv_lens),
        "attnsmith.torch sdpa": lambda: own(swapped_q, swapped_k, swapped_k, is_causal=True, enable_gqa=True),
        **{f"{where}sdpa, {name}": functools.partial(sdpa, *tensors, is_causal=causal)
           for name, (tensors, causal) in layouts().items() for where in ("torch's own ", ACTIVATED)},
        "compiled attention()": lambda: graphs["attention"](dense_q, dense_k, dense_k),
        **{f"{where}compiled sdpa": lambda: graphs["sdpa"](swapped_q, swapped_k, swapped_k)
           for where in ("torch's own ", ACTIVATED)},
        **peers,
        "torch.empty_like, for scale": lambda: torch.empty_like(dense_q),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.calls < 1 or arguments.rounds < 1:
        parser.error("--calls and --rounds are whole numbers from 1 on")
    if is_skipped():
        return SKIPPED
    attnsmith = import_attnsmith()
    importlib.import_module("attnsmith.torch")
    with torch.no_grad():
        results = measure(attnsmith, cases(attnsmith), arguments.calls, arguments.rounds)
    if arguments.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "attnsmith": attnsmith.__version__,
                          "microseconds": {name: {"median": median, "least": least}
                                           for name, (median, least) in results.items()}}))
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, attnsmith {attnsmith.__version__}")
    unit = results[SCALE]
    print(f"{'':48} {'median':>10} {'least':>10}   empty calls")
    for name, (median, least) in results.items():
        print(f"{name:48} {median:7.2f} us {least:7.2f} us {median / unit[0]:6.1f} {least / unit[1]:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
