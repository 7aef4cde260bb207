"""A program that is right but for some lines, and what mypy says of it. It needs nothing but the package's types."""

import importlib.util
import os
import re
import subprocess
import sys

# A line that ends with "# refused" is one that a type checker must refuse; all others it must take.
PROGRAM = '''
import pathlib
from typing import Any, Dict

import attnsmith


class Config:
    def to_dict(self) -> Dict[str, Any]:
        return {}


class TorchDType:
    @property
    def itemsize(self) -> int:
        return 2


class NumpyInteger:
    def __index__(self) -> int:
        return 64


request: attnsmith.Request = {"dtype": "bf16", "head_dim": 128, "q_heads": 32, "mask": "causal", "scale": 1}
attnsmith.plan(**request, sm=90)
attnsmith.plan(head_dim=NumpyInteger(), q_heads=32, dtype=TorchDType(), window_left=None, softcap=30.0, sm="90a")
attnsmith.plan(head_dim=64, q_heads=32, dtype=TorchDType, index_dtype=TorchDType)
attnsmith.plan(head_dim=64, q_heads=32, dtype=float)  # refused
attnsmith.plan(head_dmi=128, q_heads=32)  # refused
attnsmith.plan(head_dim="128", q_heads=32)  # refused
attnsmith.plan(head_dim=128.0, q_heads=32)  # refused
attnsmith.plan(head_dim=128, q_heads=32, dtype="bf61")  # refused
attnsmith.plan(head_dim=128, q_heads=32, mask="casual")  # refused
attnsmith.plan(head_dim=128, q_heads=32, lse="yes")  # refused
attnsmith.plan(head_dim=128, q_heads=32, sm=9.5)  # refused
wrong: attnsmith.Request = {"head_dim": 128, "page_sise": 16}  # refused

runtime = attnsmith.Runtime()
runtime.prepare(**request, device=0)
runtime.prepare(head_dmi=128)  # refused
runtime.prepare_async(head_dmi=128)  # refused
runtime.plan(head_dmi=128)  # refused
attnsmith.plan_model(Config(), sm=[80, "90"], tensor_parallel=2)
attnsmith.plan_model({"model_type": "llama"}, kv="dense", page_size=16)
attnsmith.plan_model(pathlib.Path("config.json"), page_sise=16)  # refused
attnsmith.plan_model(7)  # refused
runtime.model("config.json", kv="pagde")  # refused
attnsmith.prewarm([request, {"head_dim": 64, "q_heads": 4}], sm=[80])
attnsmith.prewarm(models=["a.json", Config()], kv=["paged", "dense"], page_size=[16, 64], lse=True)
attnsmith.prewarm(request, models="config.json", kv=["pagde"])  # refused
attnsmith.prewarm({"head_dim": 64, "q_heads": 4, "lse": [False, True], "index_dtype": ("int32", "int64")})
attnsmith.prewarm([{"head_dim": 64, "kv": ["pagde"]}])  # refused
several: attnsmith.Request = {"head_dim": 64, "kv": ["paged"]}  # refused
runtime.prepare(kv=["paged"])  # refused
attnsmith.prewarm({"head_dmi": 64})  # refused
attnsmith.cache("verfiy")  # refused
attnsmith.plan(head_dim=128, q_heads=32, attention_chunk=8192, sm=90)
attnsmith.plan(head_dim=128, q_heads=32, attention_chunk="8k", sm=90)  # refused
attnsmith.Runtime(log_level="debug", cache_trust="group", toolchain="exact", on_miss="compile")
attnsmith.Runtime(log_level="verbose")  # refused
attnsmith.Runtime(cache_trust="world")  # refused
attnsmith.Runtime(toolchain="oldest")  # refused
attnsmith.Runtime(on_miss="ignore")  # refused

q: Any = None
attnsmith.attention(q, q, q, causal=True, window=(255, None), precision="high")
attnsmith.attention(q, q, q, window=255)  # refused
attnsmith.attention(q, q, q, precision="best")  # refused
attnsmith.attention(q, q, q, o_dtype="fp32")
attnsmith.varlen_attention(q, q, q, q, q, o_dtype=TorchDType())
attnsmith.paged_attention(q, q, o_dtype="int32")  # refused
attnsmith.mla_attention(q, q, q, q, q_pe=q, kpe=q, scale=0.1, causal=True, consistency="bitwise")
attnsmith.mla_attention(q, q, q, q, scale="0.1")  # refused
attnsmith.mla_attention(q, q, head_dim_ckv=512.0, scale=1)  # refused
attnsmith.mla_attention(q, q, scale=1, precision="high")  # refused
attnsmith.plan(op="mla", head_dim_ckv=512, head_dim_kpe=NumpyInteger(), q_heads=128, scale=0.1, sm=90)
attnsmith.plan(op="mla", head_dim_ckv="512", head_dim_kpe=64, q_heads=128)  # refused
attnsmith.plan(head_dim=128, q_heads=32, o_dtype="float32")
attnsmith.prewarm({"head_dim": 64, "q_heads": 4, "o_dtype": ["bf16", "fp32"]})
attnsmith.prewarm({"head_dim": 64, "q_heads": 4, "o_dtype": ["bf61"]})  # refused
attnsmith.attention(q, q, q, k_scale=q, v_scale=q, kv_dtype="e4m3")
attnsmith.paged_attention(q, q, q, q, kv_dtype=TorchDType())
attnsmith.varlen_attention(q, q, q, q, q, kv_dtype="e4m4")  # refused
attnsmith.mla_attention(q, q, scale=1, k_scale=q, kv_dtype="float8_e4m3fn")
attnsmith.mla_attention(q, q, scale=1, v_scale=q)  # refused
attnsmith.plan(head_dim=128, q_heads=32, kv_dtype="float8_e5m2", kv_scale="head", sm=90)
attnsmith.plan(head_dim=128, q_heads=32, kv_dtype="e4m3", kv_scale="token_head", sm=90)
attnsmith.plan(head_dim=128, q_heads=32, kv_dtype="e4m3", kv_scale="token")  # refused
attnsmith.prewarm({"head_dim": 64, "q_heads": 4, "kv_dtype": ["bf16", "e4m3"], "kv_scale": ["none", "head"]})
attnsmith.merge_states(q, q, o_dtype="fp32")  # refused
attnsmith.atention(q, q, q)  # refused

plan: attnsmith.Plan = attnsmith.plan(**request, sm=90)
registers: int = plan["kernels"][0]["resources"]["predicted"]["registers_per_thread"]
plan["kernel"]  # refused
name: int = plan["kernels"][0]["name"]  # refused
state: str = attnsmith.prewarm(request, sm=90)["kernels"][0]["state"]
limit: "int | None" = attnsmith.cache("gc", max_bytes=1 << 30)["max_bytes"]
hits: int = runtime.cache()["counters"]["hits"]
attnsmith.cache("gc", key="12")  # refused
attnsmith.cache("explain")  # refused
attnsmith.cache("stat")["kernels"]  # refused
attnsmith.Runtime("folder", False)  # refused
attnsmith.plan_model("config.json", 90)  # refused
kernel = runtime.prepare(**request)
kernel.workspace_bytes(batch=1, q_tokens=1, max_kv_len=1)
kernel.workspace_bytes(1, 1, 1)  # refused
several_requests: attnsmith.RequestChoices = {"head_dim": 64, "kv": ["paged", "dense"]}
attnsmith.paged_attention(q, q, page_order="nhd")  # refused
'''

REFUSED = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# refused")}


def mypy_missing():
    """Why this cannot be checked, or None."""
    if importlib.util.find_spec("mypy") is None:
        return "mypy is not installed"
    version = subprocess.run([sys.executable, "-m", "mypy", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"mypy (\d+)\.(\d+)", version.stdout)
    if not found or tuple(map(int, found.groups())) < (1, 8):
        return f"mypy 1.8 or newer is needed, not {version.stdout.strip() or version.stderr.strip()}"
    return None


def check(folder, *arguments, **environment):
    """What `mypy --strict` prints of the program, put into a folder, and the numbers of the lines that it refuses; -1
    stands for what it finds elsewhere. More files and options of mypy may be given."""
    file = folder / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "mypy"), *arguments,
                           str(file)], capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, **environment})
    refused = set()
    for line in done.stdout.splitlines():
        if ": error: " in line:
            here = re.search(r"\bprogram\.py:(\d+): ", line)
            refused.add(int(here.group(1)) if here else -1)
    return done.stdout + done.stderr, refused
