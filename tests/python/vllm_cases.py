"""Steps of an engine as vLLM's model runner makes them, driven through an attention backend, and what they have to give.

A case runs on the CPU with the stand-in of attnsmith's functions, and on a GPU with the kernels.
"""

import contextlib
import dataclasses
import importlib
import math
import pathlib
import sys
import types

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "gpu"))
from gpu_support import reference  # noqa: E402

#: Physical orders of the axes of a cache [layers, blocks, kv_heads, block_size, columns].
LAYOUTS = {"LBHNC": (0, 1, 2, 3, 4), "LBNHC": (0, 1, 3, 2, 4), "LHBNC": (0, 2, 1, 3, 4), "BLHNC": (1, 0, 2, 3, 4),
           "BLNHC": (1, 0, 3, 2, 4), "BHLNC": (1, 2, 0, 3, 4)}
PAD = 3  # tokens and requests past those of the step
UNWRITTEN = 7.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and the requests of a step: queries, and keys before them."""

    name: str
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 64
    kv_cache_dtype: str = "auto"
    window: int = None
    softcap: float = None
    alibi: bool = False
    sinks: bool = False
    attn_type: str = "decoder"
    causal: bool = True
    per_head: bool = False  # scales of a fp8 cache
    layout: str = "LBNHC"
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    queries: tuple = (3, 1, 17)
    contexts: tuple = (5, 30, 0)
    tolerance: float = 0.01

    @property
    def ends(self):
        return [context + queries for context, queries in zip(self.contexts, self.queries)]


DENSE = [
    Case("mixed"),
    Case("heads of Llama 3.1", heads=32, kv_heads=8, head_size=128),
    Case("decodes", queries=(1,) * 5, contexts=(0, 3, 15, 16, 200)),
    *(Case(f"layout {layout}", layout=layout) for layout in LAYOUTS if layout != "LBNHC"),
    Case("one KV head", heads=4, kv_heads=1),
    Case("as many KV heads", heads=4, kv_heads=4, head_size=128),
    Case("window", window=9, contexts=(5, 40, 0)),
    Case("softcap", softcap=5.0),
    Case("ALiBi", alibi=True),
    Case("sinks", sinks=True),
    Case("head size 40", head_size=40),
    Case("head size 256", head_size=256, block_size=32),
    Case("head size 512", head_size=512, heads=4, kv_heads=1),
    Case("fp16", dtype=torch.float16, tolerance=0.002),
    Case("not causal", causal=False, window=9),
    Case("encoder", attn_type="encoder_only", contexts=(0, 0, 0)),
    Case("encoder with a window", attn_type="encoder_only", window=4, contexts=(0, 0, 0)),
    Case("cross attention", attn_type="encoder_decoder", contexts=(5, 30, 11), causal=False),
    Case("fp8", kv_cache_dtype="fp8"),
    Case("fp8 e5m2", kv_cache_dtype="fp8_e5m2"),
    Case("fp8 by head", kv_cache_dtype="fp8", per_head=True),
    Case("fp8 by token and head", kv_cache_dtype="fp8_per_token_head"),
    Case("fp8 by token and head, 128 columns", kv_cache_dtype="fp8_per_token_head", head_size=128),
]


def cache_of(case, columns, device):
    """[blocks, kv_heads, block_size, columns] within a cache of three layers, in the case's physical order; and page tables."""
    pages = [-(-length // case.block_size) for length in case.ends]
    blocks = sum(pages) + 2
    sizes = (3, blocks, case.kv_heads, case.block_size, columns)
    order = LAYOUTS[case.layout]
    dtype = torch.uint8 if case.kv_cache_dtype.startswith("fp8") else case.dtype
    memory = torch.full([sizes[axis] for axis in order], 0 if dtype == torch.uint8 else math.nan, dtype=dtype, device=device)
    logical = memory.permute([order.index(axis) for axis in range(5)])
    table = torch.full((len(pages), max(pages) + 1), -1, dtype=torch.int32)
    free = torch.randperm(blocks).tolist()
    for row, count in enumerate(pages):
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
    return logical[1], table


def slots_of(table, row, begin, end, block_size):
    positions = torch.arange(begin, end)
    return table[row][positions // block_size].long() * block_size + positions % block_size


class Layer(types.SimpleNamespace):
    """What a backend reads of vLLM's attention layer."""


def layer_of(case, device):
    scale = [0.5 + 0.25 * head for head in range(case.kv_heads)] if case.per_head else 0.5
    return Layer(_k_scale=torch.tensor(scale, device=device), _v_scale=torch.tensor(scale, device=device) / 2,
                 _q_scale=torch.tensor(1.0, device=device), kv_sharing_target_layer_name=None)


def impl_of(backend, case, device):
    more = {}
    if case.sinks:
        more["sinks"] = torch.randn(case.heads, device=device).to(case.dtype)
    slopes = [2.0 ** -(head + 1) for head in range(case.heads)] if case.alibi else None
    impl = backend.get_impl_cls()(case.heads, case.head_size, case.head_size ** -0.5, case.kv_heads, slopes, case.window,
                                  case.kv_cache_dtype, case.softcap, case.attn_type, None, **more)
    impl.process_weights_after_loading(case.dtype)
    return impl


def common_of(case, table, slots, queries=None, seq_lens=None):
    """CommonAttentionMetadata of a step, with fields that all releases have."""
    backend = importlib.import_module("vllm.v1.attention.backend")
    device, starts = slots.device, [0]
    for count in queries or case.queries:
        starts.append(starts[-1] + count)
    host = torch.tensor(starts, dtype=torch.int32)
    lens = torch.tensor(seq_lens or case.ends, dtype=torch.int32)
    return backend.CommonAttentionMetadata(
        query_start_loc=host.to(device), query_start_loc_cpu=host, seq_lens=lens.to(device), num_reqs=len(starts) - 1,
        num_actual_tokens=starts[-1], max_query_len=max(queries or case.queries), max_seq_len=int(lens.max()),
        block_table_tensor=table.to(device), slot_mapping=slots, causal=case.causal)


def builder_of(backend, **attributes):
    """The backend's metadata builder without an engine: nothing was prepared."""
    builder = object.__new__(backend.get_builder_cls())
    builder.__dict__.update({"_parts": 1, "_sinks": [], **attributes})
    return builder


@dataclasses.dataclass
class Driven:
    """A step that ran: its output, what it had to be, and all that a second run needs."""

    output: torch.Tensor
    wanted: torch.Tensor
    impl: object
    layer: Layer
    inputs: tuple
    metadata: object


def drive(backend, case, device):
    """Writes the context, then runs a step. The last PAD tokens belong to no request."""
    is_encoder, is_cross = case.attn_type in ("encoder", "encoder_only"), case.attn_type == "encoder_decoder"
    impl, layer = impl_of(backend, case, device), layer_of(case, device)
    scale = 4 if case.kv_cache_dtype == "fp8_per_token_head" else 0
    cache, table = cache_of(case, 2 * (case.head_size + scale), device)
    total, starts = sum(case.queries), [sum(case.queries[:row]) for row in range(len(case.queries))]

    def new(count, heads):
        return torch.randn(count, heads, case.head_size, device=device).to(case.dtype)

    keys = [new(length, case.kv_heads) for length in case.ends]
    values = [new(length, case.kv_heads) for length in case.ends]
    written = case.ends if is_cross else case.contexts  # a cross attention's keys are there before the step
    for row, count in enumerate(written):
        slots = slots_of(table, row, 0, count, case.block_size).to(device)
        impl.do_kv_cache_update(layer, keys[row][:count], values[row][:count], cache, slots)

    padding = new(PAD, case.kv_heads)
    key, value = (torch.cat([*(one[context:] for one, context in zip(both, case.contexts)), padding])
                  for both in (keys, values))
    slots = torch.cat([*(slots_of(table, row, context, end, case.block_size)
                         for row, (context, end) in enumerate(zip(case.contexts, case.ends))),
                       torch.full((PAD,), -1, dtype=torch.int64)]).to(device)
    if not is_cross and not is_encoder:
        impl.do_kv_cache_update(layer, key, value, cache, slots)
    query = new(total + PAD, case.heads)
    output = torch.full_like(query, UNWRITTEN)
    metadata = builder_of(backend).build(0, common_of(case, table, slots))
    impl.forward(layer, query, key, value, cache, metadata, output)
    if not is_encoder:
        keys, values = stored(case, layer, cache, table, keys, values)
    wanted = torch.cat([expected(case, impl, query[begin:begin + count], keys[row], values[row])
                        for row, (begin, count) in enumerate(zip(starts, case.queries))])
    return Driven(output, wanted, impl, layer, (query, key, value, cache, table, slots), metadata)


def stored(case, layer, cache, table, keys, values):
    """K and V of each request as the cache has them, in fp64. They have to be near what was written."""
    float8 = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "fp8_per_token_head": torch.float8_e4m3fn}
    of_kv = [], []
    for row, given in enumerate(zip(keys, values)):
        slots = slots_of(table, row, 0, given[0].shape[0], case.block_size).to(cache.device)
        rows = cache[slots // case.block_size, :, slots % case.block_size]
        for found, half, new, scale in zip(of_kv, rows.chunk(2, -1), given, (layer._k_scale, layer._v_scale)):
            columns = half[..., :case.head_size]
            if case.kv_cache_dtype == "fp8_per_token_head":
                scale = half[..., case.head_size:].contiguous().view(torch.float32)
            elif case.per_head:
                scale = scale[:, None]
            if case.kv_cache_dtype in float8:
                found.append(columns.contiguous().view(float8[case.kv_cache_dtype]).double() * scale.double())
                nearness = 2.0 ** (-2 if case.kv_cache_dtype == "fp8_e5m2" else -3)
                largest = new.double().abs().max() if new.numel() else 0  # a request may have no keys
                assert ((found[-1] - new.double()).abs() <= nearness * largest).all(), "what the cache has"
            else:
                found.append(columns)
                assert torch.equal(columns, new), "what the cache has"
    return of_kv


def expected(case, impl, query, keys, values):
    is_encoder = case.attn_type in ("encoder", "encoder_only")
    causal = case.causal and not is_encoder
    window = None
    if case.window is not None:
        window = (case.window - 1, None if causal else case.window - 1)
    slopes = None if impl.alibi_slopes is None else impl.alibi_slopes.to(query.device)
    return reference(query, keys, values, causal=causal, window=window, softcap=case.softcap, sinks=impl.sinks,
                     scale=case.head_size ** -0.5, alibi_slopes=slopes)[0]


def worst(driven, case):
    """The largest error over its tolerance. NaN compares as none."""
    total = sum(case.queries)
    got = driven.output[:total].double()
    return float(((got - driven.wanted).abs() / (case.tolerance * (1 + driven.wanted.abs()))).max())


# ---- latent attention ----

LATENT, POSITION, NOPE, VALUE, HEADS = 64, 16, 32, 32, 4
LATENT_LENGTHS, LATENT_QUERIES = (20, 5), (2, 1)
LATENT_SCALE = (NOPE + POSITION) ** -0.5


def latent_impl(backend, kv_cache_dtype):
    impl = object.__new__(backend.get_impl_cls())
    layers = importlib.import_module("attnsmith.vllm._layers")
    impl.__dict__.update(num_heads=HEADS, kv_lora_rank=LATENT, qk_rope_head_dim=POSITION, qk_head_dim=NOPE + POSITION,
                         v_head_dim=VALUE, scale=LATENT_SCALE, storage=layers.storage_of(kv_cache_dtype),
                         kv_cache_dtype=kv_cache_dtype, need_to_return_lse_for_decode=False, dcp_world_size=1,
                         _consistency="standard")
    return impl


def latent_calls(backend, impl, recorded):
    """The calls of a layer, each of which raises `recorded`: its cache's update, a decode, and both of a prefill."""
    dtype = torch.uint8 if impl.kv_cache_dtype == "fp8" else torch.bfloat16
    cache, scale = torch.zeros(4, 16, LATENT + POSITION, dtype=dtype), torch.tensor(0.5)
    new = torch.zeros(3, HEADS, LATENT + POSITION, dtype=torch.bfloat16)
    starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    step = types.SimpleNamespace(decode=types.SimpleNamespace(
        block_table=torch.zeros(2, 2, dtype=torch.int32), seq_lens=starts[1:], query_start_loc=starts, max_query_len=2,
        max_seq_len=32))
    prefill = importlib.import_module("attnsmith.vllm._mla_prefill").AttnsmithMLAPrefill(
        num_heads=HEADS, scale=LATENT_SCALE, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE, qk_rope_head_dim=POSITION,
        v_head_dim=VALUE, vllm_config=None)
    prefill._prefill_metadata = types.SimpleNamespace(query_start_loc=starts, max_query_len=2)
    chunk = types.SimpleNamespace(query_start_loc=starts, cu_seq_lens=starts, max_query_len=2, max_seq_len=2)
    q, v = new[..., :NOPE + POSITION].contiguous(), new[..., NOPE:NOPE + VALUE]
    for call in (lambda: impl.do_kv_cache_update(new[:, 0, :LATENT], new[:, :1, LATENT:], cache, torch.arange(3),
                                                 impl.kv_cache_dtype, scale),
                 lambda: impl.forward_mqa((new[..., :LATENT], new[..., LATENT:]), cache, step, Layer(_k_scale=scale)),
                 lambda: prefill.run_prefill_new_tokens(q, q, v, True),
                 lambda: prefill.run_prefill_context_chunk(chunk=chunk, q=q, k=q, v=v)):
        with contextlib.suppress(recorded):
            call()


def drive_latent(backend, kv_cache_dtype, device):
    """Writes two requests' latents, decodes, and gives the largest error over its tolerance."""
    impl, block_size = latent_impl(backend, kv_cache_dtype), 16
    dtype = torch.uint8 if kv_cache_dtype == "fp8" else torch.bfloat16
    cache = torch.zeros(12, block_size, LATENT + POSITION, dtype=dtype, device=device)
    table = torch.tensor([[3, 7, -1], [5, -1, -1]], dtype=torch.int32)
    slots = torch.cat([*(slots_of(table, row, 0, count, block_size) for row, count in enumerate(LATENT_LENGTHS)),
                       torch.tensor([-1])]).to(device)
    rows = torch.randn(sum(LATENT_LENGTHS) + 1, LATENT + POSITION, device=device).to(torch.bfloat16)
    scale = torch.tensor(0.5, device=device)
    impl.do_kv_cache_update(rows[:, :LATENT], rows[:, None, LATENT:], cache, slots, kv_cache_dtype, scale)
    if kv_cache_dtype == "fp8":
        kept = slots[:-1]
        rows = cache[kept // block_size, kept % block_size].view(torch.float8_e4m3fn).double() * 0.5
    q = torch.randn(sum(LATENT_QUERIES), HEADS, LATENT + POSITION, device=device).to(torch.bfloat16)
    starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    step = builder_of(backend)._build_decode(
        block_table_tensor=table.to(device), seq_lens_device=torch.tensor(LATENT_LENGTHS, dtype=torch.int32, device=device),
        max_seq_len=max(LATENT_LENGTHS), query_start_loc_cpu=starts, query_start_loc_device=starts.to(device),
        num_decode_tokens=3, dcp_tot_seq_lens_device=None)
    output, _ = impl.forward_mqa((q[..., :LATENT], q[..., LATENT:]), cache, types.SimpleNamespace(decode=step),
                                 types.SimpleNamespace(_k_scale=scale))
    wanted, at = [], 0
    for begin, count, length in zip(starts.tolist(), LATENT_QUERIES, LATENT_LENGTHS):
        own = rows[at:at + length, None]
        wanted.append(reference(q[begin:begin + count], own, own[..., :LATENT], causal=True, scale=LATENT_SCALE)[0])
        at += length
    wanted = torch.cat(wanted)
    return float(((output.double() - wanted).abs() / (0.02 * (1 + wanted.abs()))).max())


def drive_latent_prefill(device, by_index):
    """New tokens of two requests, and the context of the first. by_index: chunks are named by number, as before 0.30."""
    prefill = importlib.import_module("attnsmith.vllm._mla_prefill").AttnsmithMLAPrefill
    made = prefill(num_heads=HEADS, scale=LATENT_SCALE, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE,
                   qk_rope_head_dim=POSITION, v_head_dim=VALUE, vllm_config=None)
    queries, context = (3, 4), (5, 0)
    starts = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)
    ends = torch.tensor([0, 5, 5], dtype=torch.int32, device=device)
    chunk = types.SimpleNamespace(query_start_loc=starts, cu_seq_lens=ends, max_query_len=4, max_seq_len=5)
    made._prefill_metadata = types.SimpleNamespace(query_start_loc=starts, max_query_len=4, chunked_context=types.SimpleNamespace(
        cu_seq_lens=[ends], max_seq_lens=[5]))

    def new(count, columns):
        return torch.randn(count, HEADS, columns, device=device).to(torch.bfloat16)

    q, k, v = new(7, NOPE + POSITION), new(7, NOPE + POSITION), new(7, NOPE + VALUE)[..., NOPE:]
    old_k, old_v = new(5, NOPE + POSITION), new(5, VALUE)
    new_o, new_lse = made.run_prefill_new_tokens(q, k, v, True)
    named = {"chunk_idx": 0} if by_index else {"chunk": chunk}
    old_o, old_lse = made.run_prefill_context_chunk(**named, q=q, k=old_k, v=old_v)
    alone = made.run_prefill_new_tokens(q, k, v, False)
    errors, at, old_at = [], 0, 0
    for count, length in zip(queries, context):
        own, old = slice(at, at + count), slice(old_at, old_at + length)
        for got, lse, keys, values, causal in ((new_o, new_lse, k[own], v[own], True),
                                               (old_o, old_lse, old_k[old], old_v[old], False)):
            wanted, wanted_lse = reference(q[own], keys, values, causal=causal, scale=LATENT_SCALE)
            errors.append(((got[own].double() - wanted).abs() / (0.01 * (1 + wanted.abs()))).max())
            finite = ~torch.isinf(wanted_lse)
            difference = (lse[:, own].T.double() - wanted_lse)[finite]
            errors.extend(100 * difference.abs().flatten())
            assert torch.equal(torch.isinf(lse[:, own].T), torch.isinf(wanted_lse))
        at, old_at = at + count, old_at + length
    assert torch.equal(alone, new_o)
    return max(map(float, errors))


# ---- decode context parallelism ----


class Ranks:
    """A group of ranks that run one after the other: what a rank gathers is what all of them have."""

    world_size = 2

    def __init__(self, queries):
        self.rank_in_group, self._queries = 0, queries

    def all_gather(self, tensor, dim):
        assert torch.equal(tensor, self._queries[self.rank_in_group])
        return torch.cat(self._queries, dim)


def drive_context_parallel(backend, case, patch, device):
    """Output of both ranks, [tokens, heads of both, head_size], and what it has to be. patch: of unittest.mock. vLLM divides a
    context among ranks that have the same one KV head."""
    context_parallel = importlib.import_module("attnsmith.vllm._context_parallel")
    total = sum(case.queries)

    def new(count, heads):
        return torch.randn(count, heads, case.head_size, device=device).to(case.dtype)

    queries = [new(total, case.heads) for _ in range(2)]
    keys, values = ([new(end, case.kv_heads) for end in case.ends] for _ in "kv")
    ranks, parts = Ranks(queries), []
    for of_contexts in (True, False):  # all parts of the context, then the outputs
        outputs = []
        for rank in range(2):
            ranks.rank_in_group = rank
            impl = backend.get_impl_cls().__new__(backend.get_impl_cls())
            impl.dcp_world_size, impl.dcp_rank = 2, rank
            with patch.object(context_parallel, "_found", lambda *names: None):
                impl.__init__(case.heads, case.head_size, case.head_size ** -0.5, case.kv_heads, None, None, "auto", None)
            if of_contexts:
                def combine(o, lse, *_, **__):
                    parts.append((o, lse))
                    return o[:, :case.heads].contiguous(), lse[:, :case.heads].contiguous()
            else:
                def combine(*_, rank=rank, **__):
                    return combined(parts, rank, case.heads)
            impl._context_parallel._combine = combine
            output = run_rank(backend, case, impl, rank, ranks, queries[rank], keys, values, patch, device)
            outputs.append(output)
    wanted, at = [], 0
    for row, count in enumerate(case.queries):
        q = torch.cat([one[at:at + count] for one in queries], 1)
        wanted.append(reference(q, keys[row], values[row], causal=True, scale=case.head_size ** -0.5)[0])
        at += count
    return torch.cat(outputs, 1), torch.cat(wanted)


def combined(parts, rank, heads):
    """The parts of the context by their log-sum-exps, and of these a rank's own heads."""
    o, lse = (torch.stack([part[index].double() for part in parts]) for index in range(2))
    whole = torch.logsumexp(lse, 0)
    weights = torch.exp(lse - torch.where(whole.isinf(), 0.0, whole))
    own = slice(rank * heads, (rank + 1) * heads)
    return (weights[..., None] * o).sum(0)[:, own].to(parts[0][0].dtype), whole[:, own].float()


def run_rank(backend, case, impl, rank, ranks, query, keys, values, patch, device):
    layer = layer_of(case, device)
    cache, table = cache_of(case, 2 * case.head_size, device)
    local = []
    for row, count in enumerate(case.contexts):
        own = torch.arange(count, device=device)[rank::2]
        local.append(len(own))
        slots = slots_of(table, row, 0, len(own), 16).to(device)
        impl.do_kv_cache_update(layer, keys[row][own], values[row][own], cache, slots)
    slots = torch.full((sum(case.queries),), -1, dtype=torch.int64, device=device)
    builder = builder_of(backend, _parts=2, _part=rank, _interleave=1,
                         _context_lens=torch.zeros(8, dtype=torch.int32, device=device))
    utils = importlib.import_module("vllm.v1.attention.backends.utils")
    context_parallel = importlib.import_module("attnsmith.vllm._context_parallel")
    lengths = torch.tensor(local, dtype=torch.int32, device=device)
    with patch.object(utils, "get_dcp_local_seq_lens", lambda *_: lengths), \
            patch.object(context_parallel, "get_dcp_group", lambda: ranks):
        metadata = builder.build(0, common_of(case, table, slots))
        key, value = (torch.cat([one[context:] for one, context in zip(both, case.contexts)]) for both in (keys, values))
        output = torch.zeros_like(query)
        impl.forward(layer, query, key, value, cache, metadata, output)
    return output
