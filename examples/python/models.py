"""The kernels of a model: python models.py [CONFIG] [FOLDER]. Plans them, reports what the cache in FOLDER lacks, and compiles
one request. Needs no GPU; the compile step needs NVRTC."""

import sys
from typing import Any, Dict, Union

import attnsmith
from attnsmith.results import PrewarmedKernel

SMALL: Dict[str, Any] = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
                         "num_hidden_layers": 2, "torch_dtype": "bfloat16"}
config: Union[str, Dict[str, Any]] = sys.argv[1] if len(sys.argv) > 1 else SMALL
runtime = attnsmith.Runtime(sys.argv[2] if len(sys.argv) > 2 else None, log_level="error")

# What the config says, and what this program chooses.
options: attnsmith.ModelOptions = {"kv": "paged", "page_size": 16, "kv_len": 4096}
model: attnsmith.ModelReport = runtime.model(config, **options)
for attention in model["attentions"]:
    print(f"{attention['name']}: {attention['layers']} layers, {attention['request'].get('q_heads')} heads")
for warning in model["warnings"]:
    print(f"{warning['field']}: {warning['text']}")

# The plans: one for each distinct attention, phase and SM.
plans: attnsmith.ModelPlans = runtime.plan_model(config, sm=[80, 90], kv_len=4096)
print(f"{len(plans['plans'])} plans, {len(plans['unsupported'])} parts are not supported")

# Words that a program chooses may be lists: here two kinds of storage, each with and without the log-sum-exp.
choices: attnsmith.ModelChoices = {"kv": ["paged", "dense"], "page_size": 16, "lse": [False, True]}
coverage: attnsmith.CoverageReport = runtime.coverage(model=config, **choices)
print(f"{len(coverage['attentions'])} attentions for all combinations")

# What a server would have to compile: nothing is compiled here.
report: attnsmith.PrewarmReport = runtime.prewarm(models=config, sm=90, compile=False, **choices)
print(f"{report['summary']['hits']} of {report['summary']['total']} kernels are in the cache")


def progress(kernel: PrewarmedKernel, done: int, total: int) -> None:
    print(f"[{done}/{total}] {kernel['name']}: {kernel['state']} in {kernel['ms']:.0f} ms")


# Requests may have lists, too. attnsmith.prewarm() is the same with the default runtime.
small: attnsmith.RequestChoices = {"head_dim": 8, "q_heads": 1, "lse": [False, True]}
try:
    report = runtime.prewarm(small, sm=90, progress=progress)
    print("all kernels are in the cache" if report["summary"]["ok"] else "some kernels are missing")
except attnsmith.LibraryMissing as error:
    print(f"not compiled: {error}")
runtime.close()
