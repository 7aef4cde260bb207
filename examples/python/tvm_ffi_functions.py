"""attnsmith's functions by tvm-ffi, as C++ and Rust programs call them, too. Needs apache-tvm-ffi, PyTorch and a GPU."""

import sys

try:
    import torch
    import tvm_ffi  # noqa: F401
except ImportError:
    sys.exit("this example needs PyTorch and apache-tvm-ffi (pip install torch apache-tvm-ffi)")
if not torch.cuda.is_available():
    sys.exit("this example needs a GPU")

import attnsmith.tvm_ffi

print(f"programs in other languages open {attnsmith.tvm_ffi.library_path()}")
module = attnsmith.tvm_ffi.load()
q, k, v = torch.randn(3, 2, 128, 8, 64, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(q)
module.attention(q, k, v, out, None, True)  # causal
torch.testing.assert_close(out, attnsmith.attention(q, k, v, causal=True))
print("attention of tvm-ffi is that of Python")
