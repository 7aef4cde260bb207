"""What a call from Python costs the host, with torch on a GPU: python_overhead.py [--calls N] [--rounds N] [--json].

The problems are tiny, so that the GPU is never behind. Each round enqueues CALLS calls and waits outside of the timed
part; printed are the median and the least over the rounds, in microseconds a call. ATTNSMITH_LIBRARY, or an installed
wheel, is what is measured.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

try:
    import attnsmith
except ImportError:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import attnsmith
import torch

import attnsmith.torch


def measure(function, calls, rounds):
    """Microseconds a call: (median, least)."""
    for _ in range(50):
        function()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times), min(times)


def cases():
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
    stream = torch.cuda.current_stream().cuda_stream
    swapped_q, swapped_k = dense_q.transpose(1, 2), dense_k.transpose(1, 2)
    sdpa, own = torch.nn.functional.scaled_dot_product_attention, attnsmith.torch.scaled_dot_product_attention
    return {
        "Call.launch()": call.launch,
        "Call.launch(stream)": lambda: call.launch(stream),
        "attention(out=)": lambda: attnsmith.attention(dense_q, dense_k, dense_k, causal=True, out=dense_o),
        "attention()": lambda: attnsmith.attention(dense_q, dense_k, dense_k, causal=True),
        "paged_attention(out=), decode": lambda: attnsmith.paged_attention(q, kv, table, kv_lens, out=o),
        "paged_attention(), decode": lambda: attnsmith.paged_attention(q, kv, table, kv_lens),
        "attnsmith.torch sdpa": lambda: own(swapped_q, swapped_k, swapped_k, is_causal=True, enable_gqa=True),
        "torch's own sdpa": lambda: sdpa(swapped_q, swapped_q, swapped_q, is_causal=True),
        "torch.empty_like, for scale": lambda: torch.empty_like(dense_q),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    with torch.no_grad():
        results = {name: measure(function, arguments.calls, arguments.rounds) for name, function in cases().items()}
    if arguments.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "attnsmith": attnsmith.__version__,
                          "microseconds": {name: {"median": median, "least": least}
                                           for name, (median, least) in results.items()}}))
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, attnsmith {attnsmith.__version__}")
    for name, (median, least) in results.items():
        print(f"{name:32} {median:7.2f} us (least {least:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
