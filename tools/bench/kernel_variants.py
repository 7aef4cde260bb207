#!/usr/bin/env python3
"""Versions of the wgmma kernel's template, side by side: what to try before it is the library's.

  kernel_variants.py build OUT --templates NAME=FOLDER [...] --kernel HEAD_DIM,TILE_Q,TILE_KV[,STAGES] [...]
  kernel_variants.py run OUT [--peers] [--lengths 512,2048,16384] [--power]

`build` needs no GPU: it has the library write the kernel's source (ATTNSMITH_LIBRARY, or an installed wheel), compiles
that with NVRTC against each folder of templates (NAME=kernel_templates is the tree's own), and says how long it took
and what ptxas had to say. The tile must be one that the planner takes. `run` launches the cubins by themselves, in
turn, with torch: first each is checked against a plain computation in fp32, then timed at 16384 tokens of bf16 in all,
2048 / head_dim heads; --peers adds torch's cuDNN attention and FlashAttention-3 where it is installed, --power a second
of each at its longest with the clock and the power that nvidia-smi shows. TFLOP/s count half of the pairs under a
causal mask. All variants must take the arguments of the tree's own abi/attention_persistent.h. A field that is new there
stops `run` until launch_values() says what it holds.
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABI = ROOT / "kernel_templates/abi"
CTYPES = {"int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64, "float": ctypes.c_float}
TOKENS = 16384
PANEL, ROWS = 64, 64  # columns of a TMA box, rows of a warpgroup
MAP_BYTES = 128  # of a TensorMap
MAPS = ("q", "k", "v", "q_pe")  # the last is latent attention's, and stays zero
NO_WINDOW = (1 << 30) - 1
# Batch, query and KV tokens, query and KV heads of what is checked; the last has more tiles than CTAs, which draw the
# others.
CHECKED = ((1, 128, 128, 2, 2), (2, 333, 517, 8, 2), (3, 257, 64, 7, 1), (1, 2048, 2048, 2, 2), (4, 1100, 1100, 16, 16))


def fields(header, struct):
    """(name, type) of a struct of plain members, in order: a ctype, or the name of a struct."""
    body = re.search(r"struct %s \{(.*?)\n\};" % struct, (ABI / header).read_text(), re.S).group(1)
    body = re.sub(r"//.*", "", body)
    # Member functions, of several lines or of one.
    body = re.sub(r"(?ms)^    ATTNSMITH_HOST_DEVICE[^\n]*\{$.*?^    \}$|^ *ATTNSMITH_HOST_DEVICE[^\n]*$", "", body)
    found = []
    for member in filter(None, (" ".join(text.split()) for text in body.split(";"))):
        match = re.fullmatch(r"(?:const )?(\w+)(\*?) (\w+(?:, \w+)*)", member)
        if match is None:
            raise SystemExit(f"{header}: {struct} has a member of a form that is not known here: {member}")
        kind, pointer, names = match.groups()
        found += [(name, ctypes.c_void_p if pointer else CTYPES.get(kind, kind)) for name in names.split(", ")]
    return found


# The structs that are members of arguments, and their headers.
MEMBERS = {"Divisor": "divisor.h", "KeyBounds": "key_bounds.h"}


def structure(header, struct, members):
    known = []
    for name, kind in members:
        if kind in MEMBERS:
            kind = structure(MEMBERS[kind], kind, fields(MEMBERS[kind], kind))
        if isinstance(kind, str):
            raise SystemExit(f"{header}: {struct}.{name} is of a type that is not known here: {kind}")
        known.append((name, kind))
    return type(struct, (ctypes.Structure,), {"_fields_": known, "header": header})


def argument_types():
    """AttentionArguments, and what follows it and the TensorMaps in PersistentArguments."""
    own = fields("attention_persistent.h", "PersistentArguments")
    first = [("attention", "AttentionArguments")] + [(name, "TensorMap") for name in MAPS]
    if own[:len(first)] != first:
        raise SystemExit(f"attention_persistent.h: PersistentArguments begins with {own[:len(first)]}, expected {first}")
    return (structure("attention_arguments.h", "AttentionArguments",
                      fields("attention_arguments.h", "AttentionArguments")),
            structure("attention_persistent.h", "PersistentArguments", own[len(first):]))


def places(attention, tail):
    """Where the TensorMaps are, what follows them, and the end of it all."""
    maps = (ctypes.sizeof(attention) + 63) // 64 * 64
    rest = maps + len(MAPS) * MAP_BYTES
    return maps, rest, rest + (ctypes.sizeof(tail) + 63) // 64 * 64


def fill(target, values):
    """Every field of a structure; a value without a field is of a header that lacks it, and is left out. Storage, splits,
    biases, outputs and masks that are not measured are zero, or a null pointer: tests/python/test_variants.py holds
    that the library launches with zero, too, what launch_values() does not name."""
    ctypes.memset(ctypes.byref(target), 0, ctypes.sizeof(target))
    for name, _ in target._fields_:
        if name in values and isinstance(values[name], dict):
            fill(getattr(target, name), values[name])
        elif name in values:
            setattr(target, name, values[name])


def divisor(value):
    """abi::Divisor of it: value, magic, shift."""
    shift = (value - 1).bit_length()
    return value, 2 ** (31 + shift) // value + 1, shift


# ---- build ----


def source_of(kernel, folder):
    """The translation unit of a kernel, as the library writes it."""
    try:
        import attnsmith
    except ImportError:
        sys.path.insert(0, str(ROOT / "tools/python"))
        import attnsmith
    head_dim, tile_q, tile_kv, stages = kernel
    entry = {"match": {"sm": 90, "head_dim_qk": head_dim, "head_dim_vo": head_dim, "kv": "contiguous", "mask": "full"},
             "tile": {"backend": "wgmma", "tile_q": tile_q, "tile_kv": tile_kv, "stages": stages}}
    table = pathlib.Path(folder) / "tuning.json"
    table.write_text(json.dumps({"schema": "attnsmith.tuning/1", "entries": [entry]}))
    os.environ["ATTNSMITH_TUNING"] = str(table)
    runtime = attnsmith.Runtime(keep_source_dir=str(folder), cache_dirs=[str(pathlib.Path(folder) / "cache")])
    runtime.prewarm([{"head_dim": head_dim, "q_heads": 8, "q_len": 4096, "kv_len": 4096}], sm=90)
    for path in pathlib.Path(folder).glob("*.cu"):
        text = path.read_text()
        if "attention/wgmma/kernel.cuh" in text and f" {tile_q}x{tile_kv} stages {stages}" in text:
            return text
    raise SystemExit(f"the planner does not take {tile_q}x{tile_kv} with {stages} stages at head dim {head_dim}")


def compile_unit(nvrtc, source, templates):
    """(cubin, log, seconds). Exits with the compiler's log where it does not compile."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [b"--std=c++20", b"--ptxas-options=-v", b"-arch=sm_90a", b"-I" + str(templates).encode()]
    start = time.process_time()
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    seconds = time.process_time() - start
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if failed:
        raise SystemExit(f"{templates}:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin.raw, log.value.decode(), seconds


def build(options):
    nvrtc = ctypes.CDLL(os.environ.get("ATTNSMITH_NVRTC_PATH", "libnvrtc.so"))
    options.out.mkdir(parents=True, exist_ok=True)
    for kernel in options.kernel:
        with tempfile.TemporaryDirectory() as folder:
            source = source_of(kernel, folder)
        for name, templates in options.templates:
            cubin, log, seconds = compile_unit(nvrtc, source, templates)
            stem = "{}_{}x{}_{}_{}".format(*kernel, name)
            (options.out / f"{stem}.cubin").write_bytes(cubin)
            spills = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
            said = sorted(set(re.findall(r"C75\d\d", log)))
            print(f"{stem:40} {seconds:5.2f} s  {len(cubin):7} bytes  spills {spills}  {' '.join(said)}".rstrip())


# ---- run ----


def launch_values(kernel, sizes, causal, sms):
    """({field: value} of both structures, CTAs), as planner and engine have them; without pointers and strides.

    Planning would take another kernel, or divide the keys, for some of the sizes here, so its plans cannot be asked:
    tests/python/test_variants.py compares this with what the library launches.
    """
    head_dim, tile_q, tile_kv, _ = kernel
    batch, q_len, kv_len, heads, kv_heads = sizes
    group = heads // kv_heads
    tokens = ROWS // group  # of a warpgroup
    tiles = -(-q_len // (tokens * tile_q // ROWS))
    streams = batch * kv_heads  # see set_draws() of runtime/families/attention_wgmma/schedule.cpp
    single = min(streams, -(-2 * sms // tiles)) if causal else streams
    paired_draws = (streams - single) * -(-tiles // 2)
    draws = paired_draws + single * tiles
    scale = head_dim**-0.5
    scale_log2 = scale * math.log2(math.e)
    values = dict(q_tokens=batch * q_len, kv_tokens=kv_len, rows=batch * q_len * heads, batch=batch, q_heads=heads,
                  kv_heads=kv_heads, group=divisor(group), scale_group=divisor(group), max_q_len=q_len,
                  max_kv_len=kv_len, bounds=dict(window_left=NO_WINDOW, window_right=0 if causal else NO_WINDOW),
                  tiles=batch * tiles, sequence_tiles=tiles, splits=1, scale=scale, scale_log2=scale_log2)
    values.update(kv_head_shares=1, whole_group=group, warpgroup_tokens=tokens, draws=draws,
                  paired_draws=paired_draws, mixed_streams=single if causal else 1, box_keys=tile_kv,
                  slack=8 / scale_log2)
    return values, min(draws, sms)


def threads_of(kernel):
    return (kernel[1] // ROWS + 1) * 128


class Driver:
    def __init__(self):
        import torch
        self.torch = torch
        self.attention, self.tail = argument_types()
        self.status = torch.zeros(64, dtype=torch.int32, device="cuda")  # makes the context, current from here on
        self.library = ctypes.CDLL("libcuda.so.1")
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name} failed: {code}")

    def load(self, path):
        library, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        address, size, shared = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint32()
        self.call("cuLibraryLoadData", ctypes.byref(library), path.read_bytes(), None, None, 0, None, None, 0)
        self.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"attnsmith_attention_wgmma")
        self.call("cuKernelGetFunction", ctypes.byref(function), kernel)
        self.call("cuLibraryGetGlobal", ctypes.byref(address), ctypes.byref(size), library, b"attnsmith_shared_bytes")
        self.call("cuMemcpyDtoH_v2", ctypes.byref(shared), address, ctypes.c_size_t(4))
        self.call("cuFuncSetAttribute", function, 8, shared.value)  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        return function, shared.value

    def encode(self, map_address, tensor, extents, strides, box):
        n = len(extents)
        steps = [2 * stride if extent > 1 else 16 for stride, extent in zip(strides, extents[1:])]
        memory = ctypes.create_string_buffer(256)
        aligned = (ctypes.addressof(memory) + 127) // 128 * 128  # some drivers' CUtensorMap is aligned so
        self.call("cuTensorMapEncodeTiled", ctypes.c_void_p(aligned), 9, n, ctypes.c_void_p(tensor.data_ptr()),
                  (ctypes.c_uint64 * n)(*extents), (ctypes.c_uint64 * (n - 1))(*steps), (ctypes.c_uint32 * n)(*box),
                  (ctypes.c_uint32 * n)(*[1] * n), 0, 3, 3, 0)  # bf16, no interleave, swizzle 128, L2 256, zeros
        ctypes.memmove(map_address, aligned, MAP_BYTES)

    def launcher(self, function, shared, kernel, q, k, v, o, causal):
        """A function that launches on torch's current stream."""
        batch, q_len, heads, head_dim = q.shape
        kv_len, kv_heads = k.shape[1], k.shape[2]
        group = heads // kv_heads
        values, grid = launch_values(kernel, (batch, q_len, kv_len, heads, kv_heads), causal, self.sms)
        for name, tensor in zip("qkvo", (q, k, v, o)):
            values[name] = tensor.data_ptr()
            for axis, stride in zip(("batch", "token", "head"), tensor.stride()):
                values[f"{name}_{axis}_stride"] = stride
        values["status"] = self.status.data_ptr()
        maps, tail, size = places(self.attention, self.tail)
        memory = ctypes.create_string_buffer(size + 64)
        base = (ctypes.addressof(memory) + 63) // 64 * 64
        fill(self.attention.from_address(base), values)
        fill(self.tail.from_address(base + tail), values)
        tokens = values["warpgroup_tokens"]
        self.encode(base + maps, q, [head_dim, heads, q_len, batch], [q.stride(2), q.stride(1), q.stride(0)],
                    [PANEL, group, tokens, 1])
        for i, tensor in ((1, k), (2, v)):
            self.encode(base + maps + MAP_BYTES * i, tensor, [head_dim, kv_len, kv_heads, batch],
                        [tensor.stride(1), tensor.stride(2), tensor.stride(0)],
                        [PANEL, values["box_keys"], 1, 1])
        threads = threads_of(kernel)
        parameters = (ctypes.c_void_p * 1)(base)

        def launch(keep=(memory, q, k, v, o)):
            stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
            self.call("cuLaunchKernel", function, grid, 1, 1, threads, 1, 1, shared, stream, parameters, None)
        return launch


def random_tensors(torch, batch, q_len, kv_len, heads, kv_heads, head_dim):
    shapes = ((batch, q_len, heads), (batch, kv_len, kv_heads), (batch, kv_len, kv_heads))
    q, k, v = (torch.randn(*shape, head_dim, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    return q, k, v, torch.full_like(q, float("nan"))


def largest_error(torch, q, k, v, o, causal):
    """The error of an element, over 1 + what it should be."""
    group = q.shape[2] // k.shape[2]
    keys, values = (t.repeat_interleave(group, 2).float() for t in (k, v))
    s = torch.einsum("bqhd,bkhd->bhqk", q.float(), keys) * q.shape[3]**-0.5
    if causal:
        last = torch.arange(q.shape[1], device="cuda")[:, None] + k.shape[1] - q.shape[1]
        s = s.masked_fill(torch.arange(k.shape[1], device="cuda")[None] > last, float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1).nan_to_num(0.0), values)
    return ((o.float() - expected).abs() / (1 + expected.abs())).max().item()


def check(driver, loaded):
    """Those that are right; the others are named."""
    right = {}
    for name, (kernel, function, shared) in loaded.items():
        worst = 0.0
        for sizes in CHECKED:
            for causal in (False, True):
                tensors = random_tensors(driver.torch, *sizes, kernel[0])
                launch = driver.launcher(function, shared, kernel, *tensors, causal)
                for _ in range(2):  # what is counted must be 0 again
                    tensors[-1].fill_(float("nan"))
                    launch()
                try:
                    error = largest_error(driver.torch, *tensors, causal)
                except RuntimeError as lost:
                    raise SystemExit(f"{name}, {sizes}, {'causal' if causal else 'full'}: {lost}") from lost
                worst = max(worst, math.inf if math.isnan(error) else error)
        if worst < 1e-2:
            right[name] = (kernel, function, shared)
        else:
            print(f"WRONG {name}: largest error {worst:.3g}")
    return right


def timed_sizes(head_dim, length):
    heads = 2048 // head_dim
    return TOKENS // length, length, length, heads, heads


def contenders(driver, loaded, head_dim, length, causal, peers):
    torch = driver.torch
    q, k, v, o = random_tensors(torch, *timed_sizes(head_dim, length), head_dim)
    runs = {}
    if peers:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        transposed = [t.transpose(1, 2) for t in (q, k, v)]

        def cudnn():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(*transposed, is_causal=causal)
        runs["cudnn"] = cudnn
        try:
            import fa3_fwd_interface as fa3
            runs["fa3"] = lambda: fa3.flash_attn_func(q, k, v, causal=causal)
        except ImportError:
            pass
        for name in list(runs):
            try:
                runs[name]()
                torch.cuda.synchronize()
            except RuntimeError as error:
                print(f"  {name}: {str(error).splitlines()[0]}")
                del runs[name]
    for name, (kernel, function, shared) in loaded.items():
        if kernel[0] == head_dim:
            runs[name] = driver.launcher(function, shared, kernel, q, k, v, o, causal)
    return runs


def milliseconds(torch, launch, count):
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    start.record()
    for _ in range(count):
        launch()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def timed(torch, runs, rounds=5, round_ms=12):
    counts, times = {}, {name: [] for name in runs}
    for name, launch in runs.items():
        milliseconds(torch, launch, 3)
        counts[name] = max(3, int(round_ms / milliseconds(torch, launch, 3)))
    for _ in range(rounds):
        for name, launch in runs.items():
            times[name].append(milliseconds(torch, launch, counts[name]))
    return {name: sorted(of)[len(of) // 2] for name, of in times.items()}


def power(torch, launch, seconds=1.3):
    """Milliseconds a launch, MHz and W over the second half of `seconds`."""
    query = "nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -lms 50"
    with subprocess.Popen(query.split(), stdout=subprocess.PIPE, text=True) as monitor:
        until, taken = time.monotonic() + seconds, []
        while time.monotonic() < until:
            taken.append(milliseconds(torch, launch, 5))
        monitor.terminate()
        rows = [tuple(map(float, line)) for line in re.findall(r"^([\d.]+), *([\d.]+)$", monitor.stdout.read(), re.M)]
    late = rows[len(rows) // 2:] or [(math.nan, math.nan)]
    return sorted(taken)[len(taken) // 2], *(sum(column) / len(late) for column in zip(*late))


def run(options):
    driver = Driver()
    loaded = {}
    for path in sorted(options.out.glob("*.cubin")):
        kernel = tuple(map(int, re.match(r"(\d+)_(\d+)x(\d+)_(\d+)_", path.name).groups()))
        loaded[path.stem] = (kernel, *driver.load(path))
    loaded = check(driver, loaded)
    for head_dim in sorted({kernel[0] for kernel, _, _ in loaded.values()}):
        for causal in (False, True):
            for length in options.lengths:
                runs = contenders(driver, loaded, head_dim, length, causal, options.peers)
                flops = 4 * TOKENS * length * (2048 // head_dim * head_dim) * (0.5 if causal else 1)
                print(f"head dim {head_dim}, {'causal' if causal else 'full'}, {TOKENS // length} x {length}")
                for name, ms in timed(driver.torch, runs).items():
                    print(f"  {name:40} {flops / ms / 1e9:6.0f} TFLOP/s", flush=True)
                if options.power and length == max(options.lengths):
                    for name, launch in runs.items():
                        ms, mhz, watts = power(driver.torch, launch)
                        print(f"  {name:40} {flops / ms / 1e9:6.0f} TFLOP/s over a second, "
                              f"{mhz:.0f} MHz, {watts:.0f} W")


def main():
    def templates(text):
        name, _, folder = text.rpartition("=")
        return name or pathlib.Path(folder).name, pathlib.Path(folder).resolve()

    def kernel(text):
        numbers = tuple(map(int, text.split(",")))
        return numbers + (2,) if len(numbers) == 3 else numbers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    building = commands.add_parser("build")
    building.add_argument("out", type=pathlib.Path)
    building.add_argument("--templates", type=templates, nargs="+", default=[("own", ROOT / "kernel_templates")])
    building.add_argument("--kernel", type=kernel, nargs="+", required=True)
    building.set_defaults(action=build)
    running = commands.add_parser("run")
    running.add_argument("out", type=pathlib.Path)
    running.add_argument("--peers", action="store_true")
    running.add_argument("--power", action="store_true")
    running.add_argument("--lengths", type=lambda text: list(map(int, text.split(","))), default=[512, 2048, 16384])
    running.set_defaults(action=run)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
