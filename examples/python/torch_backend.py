"""attnsmith in the place of torch's flash attention. Needs PyTorch 2.11 and a GPU."""

import sys

try:
    import torch
except ImportError:
    sys.exit("this example needs PyTorch 2.11 (pip install torch)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith.torch

q, k, v = torch.randn(3, 2, 8, 512, 64, device="cuda", dtype=torch.bfloat16)  # [batch, heads, len, head_dim], as torch has it
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

# One call, with torch's arguments.
o = attnsmith.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.testing.assert_close(o, expected, atol=2e-2, rtol=2e-2)

# Every call that torch would send to its flash attention or to cuDNN, until deactivate().
attnsmith.torch.activate()
attnsmith.torch.reset()
o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.testing.assert_close(o, expected, atol=2e-2, rtol=2e-2)
report = attnsmith.torch.report()
print(f"served: {report['served']}")
for calls in report["passed_on"]:
    print(f"{calls['calls']} calls of {calls['function']} went to {calls['to']}: {calls['why']}")
attnsmith.torch.deactivate()
