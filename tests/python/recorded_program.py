"""recorded_program.py HEAD_DIM CHECK [DRIVER]: a program as an engine has it, dense, ragged and paged, with indices of 32
and of 64 bits, in prefill and decode, and a merge of two results. It needs neither torch nor a framework.

What it asks for is recorded, and whether it may compile is said, by ATTNSMITH_RECORD and ATTNSMITH_ON_MISS. All values
are ones, so all results are: looked at where CHECK is 1. Prints "done".
"""

import struct
import sys

import attnsmith

HEADS, KV_HEADS, PAGE = 4, 2, 16
ONE = {"bf16": struct.pack("<H", 0x3f80), "fp16": struct.pack("<H", 0x3c00), "fp32": struct.pack("<f", 1)}


def main(head_dim, check, driver):
    runtime = attnsmith.Runtime(driver_path=driver)
    attnsmith.set_default_runtime(runtime)

    def ones(*shape, dtype="bf16"):
        count = 1
        for extent in shape:
            count *= extent
        buffer = runtime.allocate(count * len(ONE[dtype]))
        buffer.upload(ONE[dtype] * count)
        return buffer.array(shape, dtype)

    def integers(*values, shape=None, dtype="int32"):
        buffer = runtime.allocate(len(values) * (4 if dtype == "int32" else 8))
        buffer.upload(struct.pack(f"<{len(values)}{'i' if dtype == 'int32' else 'q'}", *values))
        return buffer.array(shape or (len(values),), dtype)

    def look(o, dtype="bf16"):
        runtime.synchronize()
        if check:
            assert o.tobytes() == ONE[dtype] * (o.nbytes // len(ONE[dtype])), "the mean of ones is not one"

    for dtype in ("bf16", "fp16"):
        for q_len, kv_len in ((40, 300), (1, 2000)):
            look(attnsmith.attention(ones(2, q_len, HEADS, head_dim, dtype=dtype),
                                     *[ones(2, kv_len, KV_HEADS, head_dim, dtype=dtype)] * 2, causal=True), dtype)
    for index in ("int32", "int64"):
        offsets = integers(0, 5, 20, dtype=index)
        results = [attnsmith.varlen_attention(ones(20, HEADS, head_dim), *[ones(20, KV_HEADS, head_dim)] * 2, offsets,
                                              offsets, causal=True, return_lse=True) for _ in range(2)]
        look(results[0][0])
        look(attnsmith.merge_states([o for o, _ in results], [lse for _, lse in results])[0])
        pages = ones(8, 2, PAGE, KV_HEADS, head_dim)
        table = integers(0, 1, 2, 3, 4, 5, 6, 7, shape=(2, 4), dtype=index)
        lengths = integers(60, 17, dtype=index)
        look(attnsmith.paged_attention(ones(2, HEADS, head_dim), pages, table, lengths))
        look(attnsmith.paged_attention(ones(2, 9, HEADS, head_dim), pages, table, lengths, causal=True))
    print("done")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3] if len(sys.argv) > 3 else None)
