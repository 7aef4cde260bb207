"""The plain functions computed by torch on the CPU in fp64, to try adapters without a GPU.

`standing_in()` puts them in the place of attnsmith's own while a test runs, and counts their calls. They share no code
with the kernels: each follows the documentation of its function, word by word, and raises NotImplementedError for a
word that it does not know how to follow.
"""

import contextlib
import inspect
import pathlib
import re
import sys
import unittest.mock

import torch
from support import attnsmith

# Behind, since files there have names of files here.
sys.path.append(str(pathlib.Path(__file__).resolve().parent / "gpu"))
from gpu_support import reference  # noqa: E402

import attnsmith.functions as functions  # noqa: E402
from attnsmith._adapters import heads_first, spans as _spans  # noqa: E402

def plain_inductor():
    """Inductor's kernels as plain C++: without the programs that try the CPU's vector instructions and without a precompiled
    header of all of ATen, which take longer to compile than all kernels of a test."""
    import torch._inductor.config
    return torch._inductor.config.patch({"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False})


NAMES = ("attention", "varlen_attention", "paged_attention", "mla_attention", "merge_states", "append")
_SIGNATURES = {name: inspect.signature(getattr(functions, name)) for name in NAMES}


def given(name, arguments, words, known):
    """The arguments by name. What is neither known nor as its default is not followed here."""
    bound = _SIGNATURES[name].bind(*arguments, **words)
    for word, value in bound.arguments.items():
        default = _SIGNATURES[name].parameters[word].default
        if word not in known and value is not default and value != default:
            raise NotImplementedError(f"{name}: the stand-in does not follow {word}")
    bound.apply_defaults()
    return bound.arguments


_COMMON = {"causal", "window", "attention_chunk", "softcap", "sinks", "scale", "alibi_slopes", "return_lse", "lse_order",
           "out", "o_dtype", "precision", "consistency", "k_scale", "v_scale", "kv_dtype", "stream"}


def _plain_options(words):
    window = words["window"]
    if window is not None:
        window = tuple(None if side is None or side < 0 else side for side in window)
        if words["causal"]:
            window = (window[0], None)
    return {"causal": words["causal"], "window": window, "attention_chunk": words["attention_chunk"] or None,
            "softcap": words["softcap"] or None, "sinks": words["sinks"], "scale": words["scale"],
            "alibi_slopes": words["alibi_slopes"]}


def _scaled(tensor, scale, kv_dtype):
    tensor = _as_floats(tensor, kv_dtype).double()
    if scale is None:
        return tensor
    if scale.dim() == 1:
        return tensor * scale.double()[:, None]
    if scale.shape == tensor.shape[:-1]:
        return tensor * scale.double()[..., None]
    raise NotImplementedError("scales of blocks of columns")


def _as_floats(cache, kv_dtype):
    return cache.view({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kv_dtype]) if cache.dtype == torch.uint8 else cache


def _results(words, q, o, lse):
    dtype = words["o_dtype"]
    if dtype is None:
        dtype = q.dtype if words["out"] is None else words["out"].dtype
    else:
        dtype = torch.float32 if dtype in ("fp32", "float32", torch.float32) else q.dtype
    o = o.to(dtype)
    if words["out"] is not None:
        o = words["out"].copy_(o)
    if words["lse_order"] == "HND" and lse.dim() == (3 if words.get("q_indptr") is None else 2):
        lse = lse.transpose(-1, -2).contiguous()
    return (o, lse.float()) if words["return_lse"] else o


_taken = {torch.float16, torch.bfloat16}


def _check(q, k, v):
    if q.dtype not in _taken:
        if q.dtype == torch.float32:  # a dtype of requests, for which there are no kernels
            raise attnsmith.Unsupported(f"tensors of {q.dtype}")
        raise attnsmith.InvalidRequest("q.dtype", str(q.dtype), "fp16 or bf16")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype and tensor.dtype.itemsize != 1:
            raise attnsmith.InvalidRequest(f"{name}.dtype", str(tensor.dtype), f"{q.dtype} as q has")
        if tensor.stride(-1) != 1:
            raise attnsmith.InvalidRequest(f"{name}.strides", str(tensor.stride()), "1 of the last axis")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v)):
        raise attnsmith.InvalidRequest("q.requires_grad", "True", "no gradient")


def _check_scales(words):
    """Both are given or neither."""
    for name, other in (("k_scale", "v_scale"), ("v_scale", "k_scale")):
        if words[name] is None and words[other] is not None:
            raise attnsmith.InvalidRequest(name, "nothing", f"a tensor with {other}")


def attention(*arguments, **words):
    words = given("attention", arguments, words, {"q", "k", "v", "q_lens", "kv_lens"} | _COMMON)
    q, k, v, q_lens, kv_lens = (words[name] for name in ("q", "k", "v", "q_lens", "kv_lens"))
    _check(q, k, v)
    _check_scales(words)
    k64, v64 = (_scaled(tensor, words[f"{name}_scale"], words["kv_dtype"]) for name, tensor in (("k", k), ("v", v)))
    o = torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=torch.float64)
    lse = torch.full(q.shape[:-1], float("nan"), dtype=torch.float64)
    for b in range(q.shape[0]):
        rows = q.shape[1] if q_lens is None else int(q_lens[b])
        keys = k.shape[1] if kv_lens is None else int(kv_lens[b])
        o[b, :rows], lse[b, :rows] = reference(q[b, :rows], k64[b, :keys], v64[b, :keys], **_plain_options(words))
    return _results(words, q, o, lse)


def _attention_into(out, q, k, v, return_lse=True, **words):
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    results = functions.attention(q, k, v, return_lse=return_lse, lse_order="HND", out=out.transpose(1, 2), **words)
    return results[1].clone(memory_format=torch.contiguous_format) if return_lse else None  # strides of single tokens, too


def varlen_attention(*arguments, **words):
    words = given("varlen_attention", arguments, words,
                  {"q", "k", "v", "q_indptr", "kv_indptr", "max_q_len", "max_kv_len"} | _COMMON)
    q, k, v = (words[name] for name in ("q", "k", "v"))
    _check(q, k, v)
    _check_scales(words)
    k64, v64 = (_scaled(tensor, words[f"{name}_scale"], words["kv_dtype"]) for name, tensor in (("k", k), ("v", v)))
    o = torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=torch.float64)
    lse = torch.full(q.shape[:-1], float("nan"), dtype=torch.float64)
    q_ends, kv_ends = words["q_indptr"].tolist(), words["kv_indptr"].tolist()
    if len(q_ends) != len(kv_ends):
        raise attnsmith.InvalidRequest("kv_indptr.shape", str(len(kv_ends)), str(len(q_ends)))
    for begin, end, kv_begin, kv_end in zip(q_ends, q_ends[1:], kv_ends, kv_ends[1:]):
        _within("max_q_len", words, end - begin)
        if end > begin:
            _within("max_kv_len", words, kv_end - kv_begin)
        o[begin:end], lse[begin:end] = reference(q[begin:end], k64[kv_begin:kv_end], v64[kv_begin:kv_end],
                                                 **_plain_options(words))
    return _results(words, q, o, lse)


def _within(name, words, length):
    """A longer one would be clamped, which no adapter wants."""
    bound = words[name]
    assert not bound or length <= bound, f"{name} is {bound}, and a sequence has {length}"


def _pages(words, pages_per_row):
    """For each sequence its pages and its length."""
    if words["page_indptr"] is not None:
        ends, listed, last = words["page_indptr"].tolist(), words["page_indices"].tolist(), words["last_page_len"].tolist()
        return [(listed[begin:end], None if begin == end else last[b])
                for b, (begin, end) in enumerate(zip(ends, ends[1:]))]
    table = words["page_table"]
    if words["table_rows"] is not None:
        table = table[words["table_rows"].long()]
    lens = words["kv_lens"]
    return [(row.tolist(), pages_per_row if lens is None else int(lens[b])) for b, row in enumerate(table)]


def _listed(words, batch_pages, page_size):
    for pages, length in batch_pages:
        if words["page_indptr"] is not None:
            length = 0 if length is None else (len(pages) - 1) * page_size + length
        _within("max_kv_len", words, length)
        yield pages[:-(-length // page_size)], length


def paged_attention(*arguments, **words):
    words = given("paged_attention", arguments, words,
                  {"q", "kv_cache", "page_table", "kv_lens", "table_rows", "q_indptr", "page_indptr", "page_indices",
                   "last_page_len", "page_order", "max_q_len", "max_kv_len", "q_lens"} | _COMMON)
    q, cache = words["q"], words["kv_cache"]
    k, v = cache if isinstance(cache, (tuple, list)) else (cache[:, 0], cache[:, 1])
    if words["page_order"] == "HND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        for name in ("k_scale", "v_scale"):
            if words[name] is not None and words[name].dim() == 3:
                words[name] = words[name].transpose(1, 2)
    _check(q, k, v)
    _check_scales(words)
    k64, v64 = (_scaled(tensor, words[f"{name}_scale"], words["kv_dtype"]) for name, tensor in (("k", k), ("v", v)))
    page_size = k.shape[1]
    o = torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=torch.float64)
    lse = torch.full(q.shape[:-1], float("nan"), dtype=torch.float64)
    table = words["page_table"]
    listed = list(_listed(words, _pages(words, 0 if table is None else table.shape[1] * page_size), page_size))
    for b, (pages, length) in enumerate(listed):
        if words["q_indptr"] is not None:
            rows = slice(*words["q_indptr"][b:b + 2].tolist())
            where = (rows,)
        elif q.dim() == 3:
            where = (slice(b, b + 1),)
        else:
            where = (b, slice(0, q.shape[1] if words["q_lens"] is None else int(words["q_lens"][b])))
        _within("max_q_len", words, q[where].shape[0])
        keys, values = (tensor[pages].flatten(0, 1)[:length] for tensor in (k64, v64))
        o[where], lse[where] = reference(q[where], keys, values, **_plain_options(words))
    return _results(words, q, o, lse)


def mla_attention(*arguments, **words):
    words = given("mla_attention", arguments, words,
                  {"q", "ckv", "page_table", "kv_lens", "q_pe", "kpe", "head_dim_ckv", "q_indptr", "kv_indptr",
                   "page_indptr", "page_indices", "last_page_len", "max_q_len", "max_kv_len", "causal", "scale",
                   "q_lens", "return_lse", "lse_order", "out", "o_dtype", "consistency", "stream", "table_rows", "k_scale",
                   "kv_dtype"})
    q, ckv = words["q"], words["ckv"]
    if words["k_scale"] is not None or words["kv_dtype"] is not None:
        ckv = _scaled(ckv, words["k_scale"], words["kv_dtype"]).to(torch.float32).to(q.dtype)
    if words["q_pe"] is not None:
        q = torch.cat([q, words["q_pe"]], -1)
    if words["kpe"] is not None:
        columns = ckv.shape[-1]
        ckv = torch.cat([ckv, words["kpe"]], -1)
    else:
        columns = words["head_dim_ckv"] or 512
    if words["page_table"] is None and words["page_indptr"] is None:
        if ckv.dim() == (3 if words["kv_indptr"] is not None else 4):
            ckv = ckv.squeeze(-2)
        k, v = ckv.unsqueeze(-2), ckv[..., :columns].unsqueeze(-2)
        common = {name: words[name] for name in ("causal", "scale", "return_lse", "lse_order", "out", "o_dtype")}
        if words["kv_indptr"] is not None:
            return varlen_attention(q, k, v, words["q_indptr"], words["kv_indptr"], **common)
        return attention(q, k, v, q_lens=words["q_lens"], kv_lens=words["kv_lens"], **common)
    if ckv.dim() == 3:
        ckv = ckv.unsqueeze(2)
    rest = {name: words[name] for name in ("page_table", "kv_lens", "table_rows", "q_indptr", "page_indptr", "page_indices",
                                           "last_page_len", "max_q_len", "max_kv_len", "causal", "scale", "q_lens",
                                           "return_lse", "lse_order", "out", "o_dtype")}
    return paged_attention(q, (ckv, ckv[..., :columns]), **rest)


def merge_states(*arguments, **words):
    words = given("merge_states", arguments, words, {"o_states", "lse_states", "out", "return_lse", "stream"})
    o_states, lse_states = words["o_states"], words["lse_states"]
    if not torch.is_tensor(o_states):
        o_states = torch.stack(list(o_states), 1)
        lse_states = torch.stack(list(lse_states), 1)
    assert o_states.dim() == 4 and lse_states.dtype == torch.float32
    lse = torch.logsumexp(lse_states.double(), 1)
    weights = torch.exp(lse_states.double() - torch.where(lse.isinf(), 0.0, lse)[:, None])
    o = (weights[..., None] * o_states.double()).sum(1).to(o_states.dtype)
    if words["out"] is not None:
        o = words["out"].copy_(o)
    return (o, lse.float()) if words["return_lse"] else o


def _rotated(rows, positions, words):
    """rows [tokens, heads, columns] in fp64 by a table of cosines and sines."""
    table = words["rope_table"]
    if table is None:
        return rows
    if table.dim() != 2:
        raise NotImplementedError("frequencies")
    half = table.shape[1] // 2
    cos, sin = (part[:, None] for part in table[positions].double().split(half, -1))
    rotary, rest = rows[..., :2 * half], rows[..., 2 * half:]
    if words["rope"] == "interleaved":
        x, y = rotary[..., 0::2], rotary[..., 1::2]
        turned = torch.stack([x * cos - y * sin, y * cos + x * sin], -1).flatten(-2)
    else:
        x, y = rotary.split(half, -1)
        turned = torch.cat([x * cos - y * sin, y * cos + x * sin], -1)
    return torch.cat([turned, rest], -1)


def _new_tokens(words, k):
    """For each new token its sequence and its place there, after lengths."""
    lens = words["kv_lens"]
    if words["q_indptr"] is not None:
        ends = words["q_indptr"].tolist()
        spans = list(zip(ends, ends[1:]))
    else:
        q_len = k.shape[1]
        spans = [(b * q_len, b * q_len + (q_len if words["q_lens"] is None else int(words["q_lens"][b])))
                 for b in range(k.shape[0])]
    for b, (begin, end) in enumerate(spans):
        for token in range(begin, end):
            place = int(lens[b]) - (end - begin) + token - begin
            if place >= 0:  # else it is written nowhere, which the status tells
                yield token, b, place


def _write(cache, new, places, scale, kv_dtype, order):
    """new [tokens, heads, columns] to the places, divided by a scale. Scales of each token and head are computed and written:
    the largest magnitude becomes the largest float of 8 bits."""
    stored = _as_floats(cache, kv_dtype)
    if scale is not None and scale.dim() == 1:
        new = new / scale.double()[:, None]
    for token, place in places.items():
        rows = new[token]
        if scale is not None and scale.dim() > 1:
            factors = rows.abs().amax(-1) / torch.finfo(stored.dtype).max
            (scale.transpose(1, 2) if order == "HND" else scale)[place] = factors.float()
            rows = rows / factors[:, None]
        stored[place] = rows.to(stored.dtype)


def _append_latents(words):
    """k [tokens, columns] and kpe, apart, to pages [pages, page_size, columns]."""
    for name in ("v", "v_cache", "q", "positions", "rope_table"):
        assert words[name] is None, f"latents with {name}"
    per = words["k_cache"].shape[1]
    places = {token: divmod(slot, per) for token, slot in enumerate(words["slot_mapping"].tolist()) if slot >= 0}
    for new, cache in ((words["k"], words["k_cache"]), (words["kpe"], words["kpe_cache"])):
        _write(cache[:, :, None], new[:, None].double(), places, words["k_scale"], words["kv_dtype"], "NHD")


def append(*arguments, **words):
    words = given("append", arguments, words,
                  {"k", "v", "k_cache", "v_cache", "q", "q_out", "slot_mapping", "positions", "rope_table", "rope",
                   "page_order", "q_indptr", "q_lens", "kv_lens", "page_table", "table_rows", "page_indptr",
                   "page_indices", "last_page_len", "max_q_len", "max_kv_len", "stream", "k_scale", "v_scale",
                   "kv_dtype", "kpe", "kpe_cache", "head_dim_ckv"})
    if words["head_dim_ckv"] is not None:
        return _append_latents(words)
    k, q, order = words["k"], words["q"], words["page_order"]
    rows = k if k is not None else q
    flat = rows.reshape(-1, *rows.shape[-2:])
    caches = {name: words[f"{name}_cache"] for name in "kv" if words[name] is not None}
    if order == "HND":
        caches = {name: cache.transpose(1, 2) for name, cache in caches.items()}
    places, positions = {}, {}
    if words["slot_mapping"] is not None:
        per = caches["k"].shape[1]
        places = {token: divmod(slot, per) for token, slot in enumerate(words["slot_mapping"].tolist()) if slot >= 0}
    elif caches:  # q alone has positions
        page_size = caches["k"].shape[1]
        if words["page_indptr"] is not None:
            listed = list(_listed(words, _pages(words, 0), page_size))
            words["kv_lens"] = torch.tensor([length for _, length in listed])
            tables = [pages for pages, _ in listed]
        else:
            tables = None if words["page_table"] is None else [pages for pages, _ in _pages(words, 0)]
        for token, b, position in _new_tokens(words, rows):
            positions[token] = position
            places[token] = (b, position) if tables is None else \
                (tables[b][position // page_size], position % page_size)
    if words["positions"] is not None:
        positions = dict(enumerate(words["positions"].flatten().tolist()))
    turn = torch.tensor([positions.get(token, 0) for token in range(flat.shape[0])], dtype=torch.int64)
    for name, cache in caches.items():
        new = words[name].reshape(-1, *words[name].shape[-2:]).double()
        if name == "k":
            new = _rotated(new, turn, words)
        _write(cache, new, places, words[f"{name}_scale"], words["kv_dtype"], order)
    if q is None:
        return None
    turned = _rotated(q.reshape(-1, *q.shape[-2:]).double(), turn, words).view(q.shape).to(q.dtype)
    return turned if words["q_out"] is None else words["q_out"].copy_(turned)


def _of_operator(operator):
    """The function that a graph's operator stands for, which takes what the operator does; or itself where it is of none."""
    if operator.__name__.startswith("_"):
        return operator
    parts = re.fullmatch(r"(.+?)(_out)?(_with_lse)?\.default", operator.__name__)
    function, to_out, gives = globals()[parts[1]], parts[2] is not None, parts[3]
    schema = [argument.name for argument in operator._schema.arguments]

    def call(*arguments, **words):
        words.update(zip(schema, arguments))
        if "window_left" in words:
            words["window"] = words.pop("window_left"), words.pop("window_right", None)
        if words.get("v_cache") is not None and "kv_cache" in words:
            words["kv_cache"] = words["kv_cache"], words.pop("v_cache")
        if function is not append:
            words["return_lse"] = gives == "_with_lse"
        given = function(**words)
        if to_out:
            return given[1] if gives else ()
        return given if function is not append else ()

    return call


def computing_backend(graphs):
    """A backend of torch.compile that runs graphs as they are, attnsmith's operators by the functions here. `graphs`: a
    list that is given the names of each graph's operators of attnsmith."""
    def backend(graph, inputs):
        operators = [node for node in graph.graph.nodes if "attnsmith" in str(node.target)]
        graphs.append([node.target.__name__ for node in operators])
        for node in operators:
            node.target = _of_operator(node.target)
        graph.recompile()

        def run(*values):
            with standing_in():  # for operators that call the functions themselves
                return graph.forward(*values)

        return run

    return backend


@contextlib.contextmanager
def taking(*dtypes):
    """The functions here take these dtypes besides fp16 and bf16, such as torch.float32 for closer comparisons."""
    more = set(dtypes) - _taken
    _taken.update(more)
    try:
        yield
    finally:
        _taken.difference_update(more)


@contextlib.contextmanager
def standing_in(*more_dtypes):
    """Gives the calls that are made meanwhile: a list of (name of the function, positional arguments, words)."""
    calls = []

    def counted(name):
        def call(*arguments, **words):
            calls.append((name, arguments, words))
            return globals()[name](*arguments, **words)
        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(taking(*more_dtypes))
        for name in NAMES:
            stack.enter_context(unittest.mock.patch.object(functions, name, counted(name)))
            stack.enter_context(unittest.mock.patch.object(attnsmith, name, getattr(functions, name)))
        # What takes heads before tokens makes the transposes that a compiler would see.
        for module in (heads_first, _spans):
            stack.enter_context(unittest.mock.patch.object(module, "wants_operators", lambda: True))
        stack.enter_context(unittest.mock.patch.object(heads_first, "attention_into", _attention_into))
        yield calls
