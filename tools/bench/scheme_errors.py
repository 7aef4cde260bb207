#!/usr/bin/env python3
"""What storing keys and values in 8 bits costs in accuracy: each scheme's error against fp64 of the inputs before they were rounded.

    scheme_errors.py [--json scheme_errors.json]
    scheme_errors.py --list

The inputs are normal numbers in bf16, plain, and with what the caches of models are known for: channels of keys that are much
larger than the others, tokens whose values are, and heads that differ in size. The error of a query head is the root of the sum of
the squares of what O is off by, over that of O itself, and that of all is the root of the mean of their squares, so that a head of
small values counts as much as one of large ones. It is given of what the kernel computes, and in brackets of the stored numbers
alone, by fp64 attention over them: what of the error is the scheme's and no kernel's. FlashAttention-3, where it can be imported,
takes Q in e4m3 as well. A scheme that the runtime has no word for is named, with the error of its numbers.

ATTNSMITH_LIBRARY, or an installed wheel, is what is measured; torch and a GPU are needed, but for --list.
"""

import argparse
import json
import pathlib
import sys

from launches import SKIPPED, end_with_reader, import_attnsmith, is_skipped, torch

SCHEMA = "attnsmith.scheme-errors/1"
BATCH, QUERIES, KEYS, Q_HEADS, KV_HEADS, HEAD_DIM = 2, 64, 4096, 32, 8, 128
LATENT_HEADS, CKV, KPE = 16, 512, 64
BLOCK = 128  # columns of a latent that share a scale
LATENT_SCALE = 192 ** -0.5  # DeepSeek-V3's, of keys before W_UK was absorbed
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
SEED = 5

# What is stored how: kv_dtype and kv_scale, as a request has them.
SCHEMES = (("bf16", "none"), ("e4m3", "none"), ("e4m3", "tensor"), ("e4m3", "head"), ("e4m3", "token_head"),
           ("e5m2", "none"), ("e5m2", "tensor"), ("e5m2", "head"), ("e5m2", "token_head"))
LATENT_SCHEMES = (("bf16", "none"), ("e4m3", "tensor"), ("e4m3", "token_head"), ("e4m3", "block128"), ("e5m2", "tensor"))
PEER_SCHEMES = ("tensor", "head")  # of FlashAttention-3, with Q in e4m3 by one scale

# Factors of the inputs: of channels of keys, of tokens' keys and values, and of heads.
CHANNELS, CHANNEL_FACTOR = 4, 12.0
TOKENS, TOKEN_KEY_FACTOR, TOKEN_VALUE_FACTOR = 16, 2.0, 20.0
HEAD_STEP = 4.0
INPUTS = ("normal", "outlier channels", "outlier tokens", "both outliers", "heads that differ")
LATENT_INPUTS = INPUTS[:-1]  # which have one head


def name_of(kv_dtype, kv_scale):
    return kv_dtype if kv_scale == "none" else "%s, scale %s" % (kv_dtype, kv_scale)


# ---- inputs ----


def spread(inputs, k, v, generator):
    """Normal k [batch, keys, heads, dim] and v, in place, as `inputs` says. v may be None."""
    device = k.device
    if inputs in ("outlier channels", "both outliers"):
        channels = torch.randperm(k.shape[-1], generator=generator, device=device)[:CHANNELS]
        k[..., channels] *= CHANNEL_FACTOR
    if inputs in ("outlier tokens", "both outliers"):
        tokens = torch.randperm(k.shape[1] - QUERIES, generator=generator, device=device)[:TOKENS]  # seen by all queries
        k[:, tokens] *= TOKEN_KEY_FACTOR
        if v is not None:
            v[:, tokens] *= TOKEN_VALUE_FACTOR
    if inputs == "heads that differ":
        factors = HEAD_STEP ** -torch.arange(k.shape[2], dtype=torch.float32, device=device)[:, None]
        if v is not None:
            v *= factors
        k *= factors.clamp(min=2.0 ** -6)
    return k, v


def make(inputs, device="cuda"):
    """q, k and v in bf16, of [batch, tokens, heads, dim]."""
    generator = torch.Generator(device=device)
    generator.manual_seed(SEED)

    def normal(*shape):
        return torch.empty(shape, dtype=torch.float32, device=device).normal_(generator=generator)

    q = normal(BATCH, QUERIES, Q_HEADS, HEAD_DIM)
    k, v = spread(inputs, normal(BATCH, KEYS, KV_HEADS, HEAD_DIM), normal(BATCH, KEYS, KV_HEADS, HEAD_DIM), generator)
    return [tensor.bfloat16() for tensor in (q, k, v)]


def make_latents(inputs, device="cuda"):
    """q [batch, tokens, heads, columns] and latents [batch, keys, 1, columns], the position's behind the others, in bf16."""
    generator = torch.Generator(device=device)
    generator.manual_seed(SEED)
    q = torch.empty(BATCH, QUERIES, LATENT_HEADS, CKV + KPE, device=device).normal_(generator=generator) / 2
    latents = torch.empty(BATCH, KEYS, 1, CKV + KPE, device=device).normal_(generator=generator)
    spread(inputs, latents, None, generator)
    return [tensor.bfloat16() for tensor in (q, latents)]


# ---- schemes ----


def stored_dtype(kv_dtype):
    return {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kv_dtype]


def scales_of(x, kv_dtype, kv_scale):
    """fp32, by which the largest number that shares a scale becomes the largest of the dtype; None where there is none.
    [1], [heads], or of each token and head [batch, tokens, heads]."""
    if kv_scale == "none":
        return None
    most = x.float().abs()
    most = {"tensor": lambda: most.amax().view(1), "head": lambda: most.amax(dim=(0, 1, 3)),
            "token_head": lambda: most.amax(dim=3)}[kv_scale]()
    return (most / LARGEST[kv_dtype]).clamp(min=2.0 ** -40)


def store(x, kv_dtype, scale):
    if kv_dtype == "bf16":
        return x
    numbers = x.float() if scale is None else x.float() / scale[..., None]
    return numbers.clamp(-LARGEST[kv_dtype], LARGEST[kv_dtype]).to(stored_dtype(kv_dtype))


def meant(stored, scale):
    """fp64: what the stored numbers stand for."""
    return stored.double() if scale is None else stored.double() * scale.double()[..., None]


def blocks_of(latents):
    """Latents in e4m3, [..., blocks, 128], and the scale of each block, fp32 [..., blocks]."""
    blocks = latents[..., :CKV].unflatten(-1, (CKV // BLOCK, BLOCK))
    scale = (blocks.float().abs().amax(-1) / LARGEST["e4m3"]).clamp(min=2.0 ** -40)
    return store(blocks, "e4m3", scale), scale


def in_blocks(latents):
    """fp64: latents whose blocks of 128 columns have a scale of each token, and the columns of the position as they were."""
    return torch.cat((meant(*blocks_of(latents)).flatten(-2), latents[..., CKV:].double()), -1)


def rows_of_blocks(latents):
    """The same as the rows of 656 bytes that caches have, in views of one tensor of uint8: the latents [..., 512], the
    scales [..., 4] and the columns of the position [..., 64], in bf16."""
    stored, scale = blocks_of(latents)
    parts = (stored.flatten(-2).view(torch.uint8), scale.contiguous().view(torch.uint8),
             latents[..., CKV:].contiguous().view(torch.uint8))
    rows = torch.cat(parts, -1)
    ends = (CKV, CKV + 4 * (CKV // BLOCK))
    return (rows[..., :ends[0]].view(torch.float8_e4m3fn), rows[..., ends[0]:ends[1]].view(torch.float32),
            rows[..., ends[1]:].view(torch.bfloat16))


# ---- attention in fp64, and errors ----


def attention(q, k, v, scale):
    """[batch, queries, q_heads, dim], causal, the ends aligned; all inputs as fp64."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=torch.float64, device=q.device)
    first = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    seen = torch.arange(k.shape[2], device=q.device)[None] <= first
    for head in range(k.shape[1]):  # all at once would be several GB
        queries = slice(head * group, (head + 1) * group)
        scores = q[:, queries] @ k[:, head, None].transpose(-1, -2) * scale
        out[:, queries] = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v[:, head, None]
    return out.transpose(1, 2)


def relative(found, wanted):
    """Of [batch, queries, heads, dim]: the root of the mean of the squares of the heads' own."""
    off, whole = ((tensor ** 2).sum(dim=(0, 1, 3)) for tensor in (found.double() - wanted, wanted))
    return float((off / whole).mean().sqrt())


# ---- what computes ----


def own(runtime, kv_dtype, kv_scale, q, k, v, scales):
    """O of attnsmith's kernel, from what is stored."""
    words = dict(q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, mask="causal", **lengths())
    given = {}
    if kv_dtype != "bf16":
        words.update(kv_dtype=kv_dtype, kv_scale=kv_scale)
        if kv_scale != "none":
            given = dict(k_scale=scales[0], v_scale=scales[1])
    out = torch.full((BATCH, QUERIES, Q_HEADS, HEAD_DIM), float("nan"), dtype=q.dtype, device=q.device)
    launch(runtime.prepare(**words).bind(q, k, v, out, **given))
    return out


def own_latents(runtime, kv_dtype, kv_scale, q, latents, scale, kpe=None):
    words = dict(op="mla", q_heads=LATENT_HEADS, head_dim_ckv=CKV, head_dim_kpe=KPE, scale=LATENT_SCALE, mask="causal",
                 **lengths())
    given = {}
    if kv_dtype != "bf16":
        words.update(kv_dtype=kv_dtype, kv_scale=kv_scale)
        given = dict(k_scale=scale) if kpe is None else dict(k_scale=scale, kpe=kpe)
    out = torch.full((BATCH, QUERIES, LATENT_HEADS, CKV), float("nan"), dtype=q.dtype, device=q.device)
    launch(runtime.prepare(**words).bind(q, latents, None, out, **given))
    return out


def lengths():
    return dict(batch=BATCH, q_len=QUERIES, kv_len=KEYS)


def launch(call):
    call.launch()
    status = call.status()
    if status:
        raise RuntimeError("the status says %r" % status)


def peer(module, q, k, v, kv_scale):
    """O of FlashAttention-3, and the numbers that it was given, in fp64."""
    stored, descales, numbers = [], {}, []
    for name, tensor, kind in (("q", q, "tensor"), ("k", k, kv_scale), ("v", v, kv_scale)):
        scale = scales_of(tensor, "e4m3", kind)
        stored.append(store(tensor, "e4m3", scale))
        numbers.append(meant(stored[-1], scale))
        descales[name + "_descale"] = scale.expand(BATCH, KV_HEADS)
    out = module.flash_attn_func(*stored, causal=True, **descales)
    return out[0] if isinstance(out, (tuple, list)) else out, numbers


def tried(compute):
    """What it gives, and None; or None, and why not: one scheme that is not there does not end the others."""
    try:
        return compute(), None
    except Exception as error:
        return None, "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:160])


def measure(inputs, runtime, module):
    """Rows of a kind of inputs: by scheme the kernel's error, that of the stored numbers, and why there is none."""
    q, k, v = make(inputs)
    wanted, rows = attention(q, k, v, HEAD_DIM ** -0.5), {}
    for kv_dtype, kv_scale in SCHEMES:
        scales = [scales_of(tensor, kv_dtype, kv_scale) for tensor in (k, v)]
        stored = [store(tensor, kv_dtype, scale) for tensor, scale in zip((k, v), scales)]
        numbers = [meant(tensor, scale) for tensor, scale in zip(stored, scales)]
        out, why_not = tried(lambda: own(runtime, kv_dtype, kv_scale, q, *stored, scales))
        rows[name_of(kv_dtype, kv_scale)] = entry(out, attention(q, *numbers, HEAD_DIM ** -0.5), wanted, why_not)
    for kv_scale in PEER_SCHEMES:
        if module is not None:
            found, why_not = tried(lambda: peer(module, q, k, v, kv_scale))
            rows["FlashAttention-3, q k v of e4m3, scale %s" % kv_scale] = entry(
                None if found is None else found[0],
                None if found is None else attention(*found[1], HEAD_DIM ** -0.5), wanted, why_not)
    return rows


def measure_latents(inputs, runtime):
    q, latents = make_latents(inputs)
    wanted, rows = attention(q, latents, latents[..., :CKV], LATENT_SCALE), {}
    for kv_dtype, kv_scale in LATENT_SCHEMES:
        kpe = None
        if kv_scale == "block128":
            stored, scale, kpe = rows_of_blocks(latents)
            numbers = in_blocks(latents)
        else:
            scale = scales_of(latents, kv_dtype, kv_scale)
            stored = store(latents, kv_dtype, scale)
            numbers = meant(stored, scale)
        out, why_not = tried(lambda: own_latents(runtime, kv_dtype, kv_scale, q, stored, scale, kpe))
        rows[name_of(kv_dtype, kv_scale)] = entry(out, attention(q, numbers, numbers[..., :CKV], LATENT_SCALE), wanted,
                                                  why_not)
    return rows


def entry(out, of_numbers, wanted, why_not):
    if out is not None and not bool(torch.isfinite(out).all()):
        out, why_not = None, "the output has infinities or NaN"
    return {"error": None if out is None else relative(out, wanted),
            "numbers": None if of_numbers is None else relative(of_numbers, wanted), "why_not": why_not}


# ---- what is printed ----

NOTHING = {"error": None, "numbers": None, "why_not": None}


def table(title, by_inputs):
    """`by_inputs`: {inputs: {scheme: entry}}."""
    def per_cent(value):
        return "-" if value is None else "%.3g%%" % (100 * value)

    schemes = list(dict.fromkeys(scheme for rows in by_inputs.values() for scheme in rows))
    lines = ["| %s | %s |" % (title, " | ".join(by_inputs)), "| --- |" + " --- |" * len(by_inputs)]
    reasons = {}
    for scheme in schemes:
        cells = []
        for rows in by_inputs.values():
            found = rows.get(scheme, NOTHING)
            cells.append("%s (%s)" % (per_cent(found["error"]), per_cent(found["numbers"])))
            if found["why_not"]:
                reasons.setdefault("%s: %s" % (scheme, found["why_not"]), None)
        lines.append("| %s | %s |" % (scheme, " | ".join(cells)))
    return "\n".join(lines + ([""] + ["not measured, " + reason for reason in reasons] if reasons else []))


def import_peer():
    for name in ("flash_attn_interface", "flash_attn_3.flash_attn_interface"):
        try:
            return __import__(name, fromlist=["flash_attn_func"]), None
        except Exception as error:  # not installed, or for another torch
            why_not = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:160])
    return None, why_not


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", metavar="FILE", help="write what was measured, %s" % SCHEMA)
    made.add_argument("--list", action="store_true", help="show schemes and inputs; needs no GPU and no torch")
    return made


def main(argv=None):
    arguments = parser().parse_args(argv)
    if arguments.list:
        print("attention: " + "; ".join(name_of(*scheme) for scheme in SCHEMES))
        print("latents: " + "; ".join(name_of(*scheme) for scheme in LATENT_SCHEMES))
        print("inputs: " + "; ".join(INPUTS))
        return 0
    if is_skipped():
        return SKIPPED
    attnsmith = import_attnsmith()
    module, why_not = import_peer()
    runtime = attnsmith.Runtime()
    with torch.no_grad():
        found = {"attention": {inputs: measure(inputs, runtime, module) for inputs in INPUTS},
                 "latents": {inputs: measure_latents(inputs, runtime) for inputs in LATENT_INPUTS}}
    device = torch.cuda.get_device_name()
    print("%s, torch %s, attnsmith %s; %d x %d queries, %d keys, causal" % (
        device, torch.__version__, attnsmith.__version__, BATCH, QUERIES, KEYS))
    for title, by_inputs in found.items():
        print("\n" + table(title, by_inputs))
    if module is None:
        print("\nFlashAttention-3 is not there: " + why_not)
    if arguments.json:
        document = {"schema": SCHEMA, "device": device, "torch": torch.__version__, "attnsmith": attnsmith.__version__,
                    "peer": why_not or module.__name__, **found}
        pathlib.Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    # What is stored as it came is off by the kernel's own rounding alone.
    plain = [rows["bf16"]["error"] for by_inputs in found.values() for rows in by_inputs.values()]
    return 0 if all(error is not None and error < 0.01 for error in plain) else 1


if __name__ == "__main__":
    sys.exit(end_with_reader(main))
