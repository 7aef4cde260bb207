"""The steps of an engine without a framework: memory, kernels, calls, launches and their status. Needs a GPU and NVRTC, or
a cache that has the kernels."""

import sys
from typing import Tuple

import attnsmith

if not attnsmith.devices():
    sys.exit("this example needs a GPU")

BATCH, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, PAGES = 2, 4, 2, 64, 16, 8
BYTES = {"bf16": 2, "fp32": 4, "int32": 4}

runtime = attnsmith.Runtime(log_level="warn")
attnsmith.set_default_runtime(runtime)  # that of the plain functions, too
device: attnsmith.DeviceInfo = runtime.devices()[0]
print(f"{device['name']}: SM {device['sm']}, {device['sm_count']} multiprocessors, {device['memory_bytes'] >> 30} GiB")


def tensor(shape: Tuple[int, ...], dtype: str = "bf16", element: bytes = b"\x80\x3f") -> attnsmith.Array:
    """An array of this shape in memory of its own, each element with these bytes: 1.0 as bf16."""
    count = 1
    for extent in shape:
        count *= extent
    buffer: attnsmith.Buffer = runtime.allocate(count * BYTES[dtype], device["device"])
    buffer.upload(element * (buffer.nbytes // len(element)))
    return buffer.array(shape, dtype)


def of_numbers(*numbers: int) -> attnsmith.Array:
    buffer = runtime.allocate(4 * len(numbers), device["device"])
    buffer.upload(b"".join(number.to_bytes(4, "little", signed=True) for number in numbers))
    assert buffer.download(nbytes=4) == numbers[0].to_bytes(4, "little", signed=True)
    return buffer.array((len(numbers),), "int32")


# ---- Kernels: all that planning could choose for a decode step, whatever its sizes; and one that is prepared meanwhile

request: attnsmith.Request = {"head_dim": HEAD_DIM, "q_heads": Q_HEADS, "kv_heads": KV_HEADS, "kv": "paged",
                             "page_size": PAGE_SIZE}
pending: attnsmith.Pending = runtime.prepare_async(op="merge", head_dim=HEAD_DIM, q_heads=Q_HEADS, lse=True)
kernels: attnsmith.KernelSet = runtime.prepare_set(**request)
kernel: attnsmith.Kernel = kernels.pick(batch=BATCH, q_len=1, kv_len=PAGES // BATCH * PAGE_SIZE)
print(f"{len(kernels)} kernels of {kernels.spec['op']} on GPU {kernels.device}; picked {kernel.plan()['kernels'][0]['name']}")
print("the merge is ready" if pending.ready() else "the merge is being prepared")

# ---- Memory: one workspace for every kernel of the set, whose first 8192 bytes are zero

workspace = runtime.allocate(kernels.workspace_bytes(batch=BATCH, q_tokens=BATCH, max_kv_len=PAGES * PAGE_SIZE))
workspace.upload(bytes(8192))
print(f"{kernel.workspace_bytes(batch=BATCH, q_tokens=BATCH, max_kv_len=PAGE_SIZE)} bytes would do for one page of "
      f"{kernel.spec.get('q_heads')} heads on GPU {kernel.device}")
q, o = tensor((BATCH, 1, Q_HEADS, HEAD_DIM)), tensor((BATCH, 1, Q_HEADS, HEAD_DIM))
cache = (PAGES, PAGE_SIZE, KV_HEADS, HEAD_DIM)
k, v, next_k, next_v = tensor(cache), tensor(cache), tensor(cache), tensor(cache)
tables = runtime.allocate(4 * PAGES)
tables.upload(b"".join(page.to_bytes(4, "little") for page in range(PAGES)))
page_table, kv_lens = tables.array((BATCH, PAGES // BATCH), "int32"), of_numbers(17, 40)

# ---- A call: bound once, launched for each layer with the caches of that layer

call: attnsmith.Call = kernel.bind(q, k, v, o, page_table=page_table, kv_lens=kv_lens, workspace=workspace)
print(call.describe())
call.launch()
call.launch(k=next_k, v=next_v)
word = of_numbers(0)
call.copy_status(word.data)  # in the order of the stream; read it when that is convenient
call.synchronize()
status: attnsmith.CallStatus = attnsmith.CallStatus(word)
if status:
    print(f"lengths were clamped: {status.q_len_clamped or status.kv_len_clamped}, "
          f"pages do not exist: {status.page_out_of_range}, workspace not zeroed: {status.workspace_not_zeroed}, scales not positive: {status.scale_not_positive}")
    call.clear_status()
assert not call.status()  # waits for the stream
print(f"o begins with {o.tobytes()[:2].hex()}")

# ---- Other ops: merges of partial results, appends to the cache, and the largest scores

states = [tensor((BATCH, Q_HEADS, HEAD_DIM)) for _ in range(2)]
logs = [tensor((BATCH, Q_HEADS), "fp32", b"\0\0\0\0") for _ in range(2)]
merge: attnsmith.Kernel = pending.result(timeout=600)
merge.bind_merge(states, logs, states[0], tensor((BATCH, Q_HEADS), "fp32", b"\0\0\0\0")).launch()

append: attnsmith.Kernel = runtime.prepare(op="append", head_dim=HEAD_DIM, q_heads=Q_HEADS, kv_heads=KV_HEADS, kv="paged",
                                            page_size=PAGE_SIZE, index_dtype="int32", check_slots=True)
rows = (BATCH, KV_HEADS, HEAD_DIM)
appended = append.bind_append(k=tensor(rows), v=tensor(rows), k_cache=k, v_cache=v, slot_mapping=of_numbers(17, 40))
appended.launch()
status = appended.status()
assert not (status.slot_out_of_range or status.slot_written_twice or status.position_out_of_range)

top_k: attnsmith.Kernel = runtime.prepare(op="top_k")
indices: attnsmith.Array = tensor((2, 8), "int32", b"\0\0\0\0")
selected = top_k.bind_op(scores=tensor((2, 90), "fp32", b"\0\0\x80\x3f"), indices=indices)
selected.launch()
runtime.synchronize()
print(f"{indices.nbytes} bytes of columns; the first is {indices.tobytes()[0]}")

assert attnsmith.default_runtime() is runtime
attnsmith.set_default_runtime(None)
runtime.close()
