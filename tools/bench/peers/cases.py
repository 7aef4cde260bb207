"""What is measured: problems, how much work each is, and the sets that --cases names.

Nothing here needs torch or a GPU.
"""

from __future__ import annotations

import functools
import random
import zlib
from dataclasses import asdict, dataclass, replace
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

TOTAL_TOKENS = 16384
WIDTH = 2048  # q_heads * head_dim of the prefill grid, as in the FlashAttention papers
ELEMENT_BYTES = 2
KV_BYTES = {"": ELEMENT_BYTES, "e4m3": 1}  # of an element, by Case.kv_dtype
FEW_QUERIES = 16  # of a sequence: up to here reading its keys takes the time, as it does in decode
# |out - reference| <= tolerance + tolerance * |reference|
TOLERANCE = {"fp16": 1e-3, "bf16": 1e-2}


@functools.lru_cache(maxsize=None)
def visible_pairs(q_len: int, kv_len: int, causal: bool, window: Optional[Tuple[int, int]]) -> int:
    """How many (query, key) pairs of one sequence and head the mask leaves; bottom-right aligned."""
    pairs = 0
    for query in range(q_len):
        at = query + kv_len - q_len
        last = kv_len - 1
        if window is not None:
            last = min(last, at + window[1])
        if causal:
            last = min(last, at)
        first = 0 if window is None else max(0, at - window[0])
        pairs += max(0, last - first + 1)
    return pairs


@dataclass(frozen=True)
class Case:
    """One problem. Lengths are by sequence. They may differ in ragged and in paged KV; dense ones are all equal."""

    set: str
    dtype: str
    q_lens: Tuple[int, ...]
    kv_lens: Tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    causal: bool = False
    window: Optional[Tuple[int, int]] = None  # (left, right)
    kv: str = "dense"  # dense, ragged or paged
    page_size: int = 0
    label: str = ""  # tells mixes of lengths apart; without one all lengths are equal
    shared_kv: bool = False  # v is the first head_dim_vo columns of k (latent attention)
    kv_dtype: str = ""  # of K and V where it is not `dtype`: e4m3
    kv_scale: str = ""  # then tensor or head: what stored numbers are multiplied by, one of all or one of each KV head

    @property
    def batch(self) -> int:
        return len(self.q_lens)

    @property
    def q_len(self) -> int:
        return max(self.q_lens)

    @property
    def kv_len(self) -> int:
        return max(self.kv_lens)

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def head_dims(self) -> str:
        same = self.head_dim_qk == self.head_dim_vo
        return str(self.head_dim_qk) if same else "%d/%d" % (self.head_dim_qk, self.head_dim_vo)

    @property
    def is_decode(self) -> bool:
        return self.q_len == 1

    @property
    def has_few_queries(self) -> bool:
        """Whether it is bound by memory: decode, and what checks a few drafted tokens of each sequence."""
        return self.q_len <= FEW_QUERIES

    @property
    def ragged_q(self) -> bool:
        """Whether q is [tokens, heads, dim] with offsets, beside ragged KV or where sequences differ in queries."""
        return self.kv == "ragged" or len(set(self.q_lens)) > 1

    @property
    def page_counts(self) -> Tuple[int, ...]:
        """Of each sequence; the last page may not be full."""
        return tuple(-(-length // self.page_size) for length in self.kv_lens)

    @property
    def family(self) -> str:
        """All but the lengths: the cases of one family are the points of one line in a plot."""
        words = [self.dtype, "hd" + self.head_dims, "%d/%d" % (self.q_heads, self.kv_heads)]
        if not self.is_decode:
            words.append("causal" if self.causal else "full")
        if self.window is not None:
            words.append("window %d" % (self.window[0] + 1))
        if self.kv_dtype:
            words.append("kv %s%s" % (self.kv_dtype, " by head" if self.kv_scale == "head" else ""))
        if self.kv == "paged":
            words.append("paged by %d" % self.page_size)
        elif self.is_decode:
            words.append("dense")
        return " ".join(words)

    @property
    def name(self) -> str:
        if self.label:
            lengths = "%s (%d sequences)" % (self.label, self.batch)
        elif self.is_decode:
            lengths = "%dx%d" % (self.batch, self.kv_len)
        elif self.q_len == self.kv_len:
            lengths = "%dx%d" % (self.batch, self.q_len)
        else:
            lengths = "%dx%d:%d" % (self.batch, self.q_len, self.kv_len)
        return self.family + " " + lengths

    @property
    def seed(self) -> int:
        # The same in every process, as hash() is not.
        return zlib.crc32((self.set + " " + self.name).encode())

    @property
    def pairs(self) -> float:
        """Pairs that are counted as work, over all sequences, of one head.

        By the field's convention a causal square is half of its pairs; every other mask is counted exactly.
        """
        total = 0.0
        for q_len, kv_len in zip(self.q_lens, self.kv_lens):
            if self.causal and self.window is None and q_len == kv_len:
                total += q_len * kv_len / 2
            else:
                total += visible_pairs(q_len, kv_len, self.causal, self.window)
        return total

    @property
    def flops(self) -> float:
        return 2.0 * (self.head_dim_qk + self.head_dim_vo) * self.q_heads * self.pairs

    @property
    def bytes(self) -> float:
        """Q, K, V and O once each: of every sequence its own keys, without the rest of its last page."""
        queries = sum(self.q_lens) * self.q_heads * (self.head_dim_qk + self.head_dim_vo)
        kept = self.head_dim_qk if self.shared_kv else self.head_dim_qk + self.head_dim_vo
        return float(ELEMENT_BYTES * queries + KV_BYTES[self.kv_dtype] * sum(self.kv_lens) * self.kv_heads * kept)

    @property
    def tolerance(self) -> float:
        return 2e-2 if self.shared_kv and self.dtype == "bf16" else TOLERANCE[self.dtype]

    def to_json(self) -> Dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Dict[str, object]) -> "Case":
        made = dict(fields)
        for name in ("q_lens", "kv_lens", "window"):
            if made.get(name) is not None:
                made[name] = tuple(made[name])  # type: ignore[arg-type]
        return Case(**made)  # type: ignore[arg-type]


def square(set_name: str, dtype: str, head_dim: int, heads: Tuple[int, int], tokens: int, causal: bool,
           **more: object) -> Case:
    """As many sequences of `tokens` tokens as make 16k tokens."""
    lens = (tokens,) * (TOTAL_TOKENS // tokens)
    fields = dict(head_dim_vo=head_dim)
    fields.update(more)  # type: ignore[arg-type]
    return Case(set_name, dtype, lens, lens, heads[0], heads[1], head_dim, causal=causal, **fields)  # type: ignore


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
GROUPED = (32, 8)  # query and KV heads of today's larger models


def prefill() -> List[Case]:
    """The grid of the FlashAttention papers, and the same lengths with grouped heads."""
    return [square("prefill", dtype, head_dim, heads, tokens, causal)
            for dtype in ("bf16", "fp16") for head_dim in (64, 128, 256)
            for heads in ((WIDTH // head_dim, WIDTH // head_dim), GROUPED)
            for causal in (False, True) for tokens in LENGTHS]


# Head dims, each with the larger ones that libraries round it up to.
ROUNDED: Dict[Tuple[int, int], Tuple[Tuple[int, int], ...]] = {
    (80, 80): ((96, 96),), (96, 96): ((128, 128),), (112, 112): ((128, 128),), (160, 160): ((192, 192),),
    (192, 192): ((256, 256),), (192, 128): ((192, 192), (256, 256)),
}


def dims() -> List[Case]:
    """Head dims between the powers of two, and those that they would be rounded up to."""
    every = sorted(set(ROUNDED) | {larger for those in ROUNDED.values() for larger in those})
    return [square("dims", "bf16", head_dim, (16, 16), tokens, causal, head_dim_vo=head_dim_vo)
            for causal in (False, True) for tokens in (1024, 4096, 16384) for head_dim, head_dim_vo in every]


@functools.lru_cache(maxsize=None)
def mixed_lengths(tokens: int) -> Tuple[int, ...]:
    """Random lengths that add up to 16k, with the work of as many tokens in sequences of `tokens` each.

    That is the sum of the squares, to half a per cent: speed against the dense case then shows the storage.
    """
    rng = random.Random(tokens)
    sequences = 2 * TOTAL_TOKENS // tokens  # what cuts at random places leave has a mean square of twice the mean's
    while True:
        cuts = sorted(rng.sample(range(1, TOTAL_TOKENS), sequences - 1))
        lens = [b - a for a, b in zip([0] + cuts, cuts + [TOTAL_TOKENS])]
        if abs(sum(length * length for length in lens) / (TOTAL_TOKENS * tokens) - 1) < 0.005:
            return tuple(lens)


def halving_lengths() -> Tuple[int, ...]:
    """One long sequence with ever shorter ones, 16k tokens in all."""
    halves = [TOTAL_TOKENS >> (i + 1) for i in range(11)]
    return tuple(halves + [TOTAL_TOKENS - sum(halves)])


def ragged_mixes(tokens: int) -> Dict[str, Tuple[int, ...]]:
    """Lengths that are held to dense sequences of `tokens`, by label."""
    mixes = {"mixed %d" % tokens: mixed_lengths(tokens)}
    if tokens == 2048:
        mixes["equal"] = (tokens,) * (TOTAL_TOKENS // tokens)
    if tokens == 4096:
        mixes["halving"] = halving_lengths()  # longer than that by its work: 5461
    return mixes


def ragged() -> List[Case]:
    """Ragged lengths, after the dense case of the same work."""
    cases = []
    for head_dim, heads, lengths in ((64, (32, 32), (2048,)), (128, (16, 16), (1024, 2048, 4096)),
                                     (128, GROUPED, (2048,)), (256, (8, 8), (2048,))):
        for causal in (False, True):
            for tokens in lengths:
                cases.append(square("ragged", "bf16", head_dim, heads, tokens, causal))
                cases += [Case("ragged", "bf16", lens, lens, heads[0], heads[1], head_dim, head_dim, causal=causal,
                               kv="ragged", label=label) for label, lens in ragged_mixes(tokens).items()]
    return cases


PAGE_SIZES = (1, 8, 16, 64, 256)


def paged() -> List[Case]:
    """Pages of each size, after the dense case."""
    cases = []
    for head_dim, heads, tokens, causal in (
            (128, GROUPED, 1024, True), (128, GROUPED, 4096, True), (128, GROUPED, 16384, True),
            (128, GROUPED, 4096, False), (128, (16, 16), 4096, True), (64, GROUPED, 4096, True),
            (256, GROUPED, 4096, True)):
        cases.append(square("paged", "bf16", head_dim, heads, tokens, causal))
        cases += [square("paged", "bf16", head_dim, heads, tokens, causal, kv="paged", page_size=page_size)
                  for page_size in PAGE_SIZES]
    return cases


def window() -> List[Case]:
    """A window of 1024 keys, after the causal case without one."""
    cases = []
    for head_dim, heads in ((64, (32, 32)), (128, (16, 16)), (128, GROUPED), (256, (8, 8))):
        cases.append(square("window", "bf16", head_dim, heads, TOTAL_TOKENS, True))
        cases.append(square("window", "bf16", head_dim, heads, TOTAL_TOKENS, True, window=(1023, 0)))
    return cases


DECODE_GRID = ((1, 65536), (16, 8192), (64, 4096), (128, 2048))


def storage(page_size: int) -> Dict[str, object]:
    """Of a Case: pages of so many keys, or 0 for dense tensors."""
    return dict(kv="paged" if page_size else "dense", page_size=page_size)


def decode_cases(set_name: str, heads: Tuple[int, int], page_size: int, grid: Sequence[Tuple[int, int]],
                 head_dims: Tuple[int, int] = (128, 128), q_len: int = 1) -> List[Case]:
    """Batches and KV lengths of `grid`, one query a sequence, or several, of which the last sees all keys."""
    return [Case(set_name, "bf16", (q_len,) * batch, (kv_len,) * batch, *heads, *head_dims, causal=q_len > 1,
                 **storage(page_size)) for batch, kv_len in grid]  # type: ignore[arg-type]


def decode() -> List[Case]:
    return [case for page_size in (0, 16) for case in decode_cases("decode", GROUPED, page_size, DECODE_GRID)]


def decode_more() -> List[Case]:
    """Other heads, pages and more, shorter sequences."""
    known = {case.name for case in decode()}
    cases = [case for heads in (GROUPED, (32, 32), (64, 8)) for page_size in (0, 16, 64)
             for case in decode_cases("decode-more", heads, page_size, DECODE_GRID + ((256, 1024),))]
    return [case for case in cases if case.name not in known]


# Sequences, query heads, keys and queries of each.
LATENT_GRID = ((128, 128, 4096, 1), (128, 128, 4096, 2), (64, 128, 8192, 4), (64, 128, 32768, 1), (128, 16, 8192, 1),
               (64, 16, 8192, 1), (128, 32, 8192, 1), (16, 128, 8192, 1), (32, 64, 4096, 1), (1, 128, 65536, 1),
               (1, 16, 4096, 1), (8, 16, 1024, 1))


def mla() -> List[Case]:
    """Latent attention's decode, of one query and more, for those that do it; not in the default sets."""
    def latent(heads: int, q_lens: Tuple[int, ...], kv_lens: Tuple[int, ...], label: str = "") -> Case:
        return Case("mla", "bf16", q_lens, kv_lens, heads, 1, 576, 512, causal=q_lens[0] > 1, kv="paged", page_size=64,
                    shared_kv=True, label=label)

    label, lengths = next(iter(decode_mixes().items()))
    return [latent(heads, (queries,) * batch, (kv_len,) * batch) for batch, heads, kv_len, queries in LATENT_GRID] + [
        latent(heads, (1,) * len(lengths), lengths, label) for heads in (16, 128)]


SMALL_GRID = ((1, 1024), (1, 8192), (1, 32768), (4, 4096), (8, 2048), (16, 1024), (16, 2048), (32, 1024))
SMALL_POINTS = ((1, 8192), (16, 1024))  # of it, for what is not measured at all of it
SMALL_HEAD_DIMS = ((64, 64), (96, 96), (192, 128), (256, 256))


def decode_small() -> List[Case]:
    """KV under 256 MB: there is too little of it for the GPU to be busy without splitting it well."""
    cases = [case for page_size in (0, 16, 64) for case in decode_cases("decode-small", GROUPED, page_size, SMALL_GRID)]
    cases += [case for page_size in (1, 8) for case in decode_cases("decode-small", GROUPED, page_size, SMALL_POINTS)]
    return cases + [case for head_dims in SMALL_HEAD_DIMS for page_size in (0, 16)
                    for case in decode_cases("decode-small", GROUPED, page_size, SMALL_POINTS, head_dims)]


def random_lengths(sequences: int, least: int, most: int, logarithmic: bool = False) -> Tuple[int, ...]:
    """With both ends among them, in random order; `logarithmic`: as many of each order of magnitude."""
    rng = random.Random(sequences)

    def one() -> int:
        return round(least * (most / least) ** rng.random()) if logarithmic else rng.randint(least, most)

    lens = [least, most] + [one() for _ in range(sequences - 2)]
    rng.shuffle(lens)
    return tuple(lens)


def decode_mixes() -> Dict[str, Tuple[int, ...]]:
    """KV lengths that differ a lot in one batch, by label. The long ones do not come first."""
    return {
        "100 to 60000": random_lengths(64, 100, 60000, logarithmic=True),
        "1 to 4096": random_lengths(32, 1, 4096),
        "1x131072 and 63x1024": (1024,) * 40 + (131072,) + (1024,) * 23,
        "64 to 2048": random_lengths(128, 64, 2048),
        "56x512 and 8x32768": ((512,) * 7 + (32768,)) * 8,
    }


def decode_mixed() -> List[Case]:
    """One query a sequence, and KV lengths as a server's batches have them."""
    mixes = decode_mixes()
    first = next(iter(mixes))

    def mixed(label: str, heads: Tuple[int, int], head_dim: int, page_size: int) -> Case:
        kv_lens = mixes[label]
        return Case("decode-mixed", "bf16", (1,) * len(kv_lens), kv_lens, *heads, head_dim, head_dim, label=label,
                    **storage(page_size))  # type: ignore[arg-type]

    return [mixed(label, GROUPED, 128, 16) for label in mixes] + [
        mixed(first, GROUPED, 128, 64), mixed(first, (64, 8), 64, 16)]


def speculative() -> List[Case]:
    """A few drafted tokens of each sequence, which are checked at once."""
    cases = [case for q_len in (2, 4, 8, 16)
             for case in decode_cases("speculative", GROUPED, 16, ((8, 8192), (32, 2048), (1, 32768)), q_len=q_len)]
    return cases + decode_cases("speculative", GROUPED, 0, ((8, 8192),), q_len=8)


def groups() -> List[Case]:
    """Query heads that share a KV head: those of models, and those that fill no tile. 71 are Falcon 7B's."""
    cases = [case for group in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
             for case in decode_cases("groups", (8 * group, 8), 16, ((64, 4096),))]
    return cases + decode_cases("groups", (71, 1), 16, ((64, 4096),), (64, 64))


# Chunks and decodes of a step: how many, queries of each, keys of each.
STEPS = (((1, 2048, 2048), (63, 1, 4096)), ((1, 2048, 16384), (63, 1, 4096)),
         ((4, 512, 512), (28, 1, 4096)), ((4, 512, 4096), (28, 1, 4096)))


def steps() -> List[Case]:
    """Prefill beside decode in one launch, as servers that cut prompts into chunks have it."""
    cases = []
    for parts in STEPS:
        q_lens, kv_lens = (sum(((part[column],) * part[0] for part in parts), ()) for column in (1, 2))
        cases.append(Case("steps", "bf16", q_lens, kv_lens, *GROUPED, 128, 128, causal=True,
                          label=" and ".join("%dx%d:%d" % part for part in parts),
                          **storage(16)))  # type: ignore[arg-type]
    return cases


# Decode of 16-bit KV, and what has it among its sequences.
DECODE_SETS: Dict[str, Callable[[], List[Case]]] = {
    "decode": decode, "decode-more": decode_more, "decode-small": decode_small, "decode-mixed": decode_mixed,
    "speculative": speculative, "groups": groups, "steps": steps,
}


def of_8_bits(cases: Iterable[Case], set_name: str, kv_scale: str = "tensor") -> List[Case]:
    """The same with K and V of e4m3, and Q of 16 bits as before."""
    return [replace(case, set=set_name, kv_dtype="e4m3", kv_scale=kv_scale) for case in cases]


FP8_GRID = ((64, 4096), (16, 8192), (1, 65536))  # what is promised by number
FP8_SHORT = ((1, 1024), (4, 2048))  # where a launch costs more than its bytes
FP8_LATENTS = ((128, 16, 8192), (8, 16, 1024), (1, 16, 4096), (128, 128, 4096), (16, 128, 8192), (1, 128, 65536))


def decode_fp8() -> List[Case]:
    """One query of 16 bits on KV of 8 bits, and 16 queries, few KV heads and latents."""
    name = "decode-fp8"
    cases = [case for page_size in (0, 16, 64)
             for case in decode_cases(name, GROUPED, page_size, FP8_GRID + FP8_SHORT)]
    cases += [case for page_size in (0, 16)
              for heads, head_dim in (((64, 1), 128), ((71, 1), 64))
              for case in decode_cases(name, heads, page_size, ((64, 4096),), (head_dim, head_dim))]
    cases += decode_cases(name, GROUPED, 16, ((8, 8192), (32, 2048), (1, 32768)), q_len=16)
    latents = [(case.batch, case.q_heads, case.kv_len) for case in mla()]
    cases += [mla()[latents.index(point)] for point in FP8_LATENTS]
    by_head = decode_cases(name, GROUPED, 16, FP8_GRID)
    return of_8_bits(cases, name) + of_8_bits(by_head, name, "head")


def decode_fp8_all() -> List[Case]:
    """Every case of one query or a few that there is of 16-bit KV, with KV of 8 bits: whether it is ever slower."""
    every = {case.name: case for name, make in DECODE_SETS.items() if name != "steps" for case in make()}
    return of_8_bits(every.values(), "decode-fp8-all")


# Sequences, queries of each, keys of each: prompts in chunks behind what is cached already.
FP8_CHUNKS = ((1, 512, 16384), (4, 512, 4096), (1, 2048, 16384), (1, 8192, 16384))


def prefill_fp8() -> List[Case]:
    """From 512 queries on: whole prompts of 512 to 16k tokens, dense and in pages, and chunks of them."""
    name = "prefill-fp8"
    cases = [square(name, "bf16", 128, heads, tokens, causal)
             for heads, causal in ((GROUPED, True), (GROUPED, False), ((16, 16), True)) for tokens in LENGTHS]
    cases += [square(name, "bf16", 128, GROUPED, tokens, True, **storage(page_size))
              for page_size in (16, 64) for tokens in LENGTHS]
    cases += [square(name, "bf16", head_dim, GROUPED, 4096, True) for head_dim in (64, 256)]
    cases += [Case(name, "bf16", (q_len,) * batch, (kv_len,) * batch, *GROUPED, 128, 128, causal=True,
                   **storage(16)) for batch, q_len, kv_len in FP8_CHUNKS]  # type: ignore[arg-type]
    return of_8_bits(cases, name)


FP8_SETS: Dict[str, Callable[[], List[Case]]] = {
    "decode-fp8": decode_fp8, "decode-fp8-all": decode_fp8_all, "prefill-fp8": prefill_fp8,
}
SETS: Dict[str, Callable[[], List[Case]]] = {
    "prefill": prefill, "dims": dims, "ragged": ragged, "paged": paged, "window": window, **DECODE_SETS, "mla": mla,
    **FP8_SETS,
}
ALIASES = {"storage": ("ragged", "paged", "window")}
DEFAULT_SETS = ("prefill", "dims", "ragged", "paged", "window", "decode")


def in_quick(case: Case) -> bool:
    """A tenth or so of the cases that still touches every set and every kind of problem."""
    if case.dtype != "bf16":
        return False
    if case.set == "prefill":
        return case.head_dim_qk == 128 and case.group == 1 and case.kv_len in (1024, 16384)
    if case.set == "dims":
        return case.causal and case.kv_len == 4096
    if case.set == "paged":
        return (case.causal and case.kv_len == 4096 and case.head_dim_qk == 128 and case.group == 4
                and case.page_size in (0, 1, 16, 64))
    if case.set in ("decode", "decode-more"):
        return case.group == (4 if case.set == "decode" else 8) and case.page_size < 64 and case.kv_len in (8192, 2048)
    if case.set == "decode-small":
        return case.head_dims == "128" and case.page_size in (0, 16) and (case.batch, case.kv_len) in SMALL_POINTS
    if case.set == "decode-fp8":
        return (case.batch, case.kv_len) == (16, 8192) and case.page_size in (0, 16, 64) and case.kv_scale == "tensor"
    if case.set == "decode-fp8-all":
        return case.group == 4 and case.page_size == 16 and (case.batch, case.kv_len) == (1, 8192)
    if case.set == "prefill-fp8":
        return case.causal and case.group == 4 and case.head_dim_qk == 128 and case.kv_len in (512, 16384) and (
            case.kv == "dense")
    if case.set == "decode-mixed":
        return case.page_size == 16 and case.head_dim_qk == 128 and case.batch == 64
    if case.set == "speculative":
        return case.q_len == 4
    if case.set == "groups":
        return case.group in (1, 5, 8)
    if case.set == "steps":
        return case.batch == 64
    if case.set == "ragged":
        return (case.head_dim_qk == 128 and case.causal and case.group == 1
                and (case.label == "mixed 2048" or not case.label and case.kv_len == 2048))
    return case.group == 1 and case.head_dim_qk == 128 or case.set == "mla" and (case.batch, case.kv_len) == (16, 8192)


def select(sets: List[str], dtypes: List[str], quick: bool) -> List[Case]:
    cases = [case for name in sets for case in SETS[name]()]
    return [case for case in cases if case.dtype in dtypes and (not quick or in_quick(case))]


# How much longer than the work says something may take, compared with what it is held to.
PAGED_TARGETS = ((64, 0.05), (8, 0.10), (1, 0.30))  # of pages of at least so many keys
RAGGED_TARGET, WINDOW_TARGET = 0.05, 0.20


def least_over_bf16(case: Case) -> float:
    """How many times the tokens/s of its own 16-bit KV a case with KV of 8 bits is to have, at least.

    Where reading KV takes the time it would be 2; what converts the keys and the values takes its share. Of latents each
    key is converted once for many query heads' products, which are what takes the time from some heads on.
    """
    if case.shared_kv:
        return 1.3 if case.q_heads <= 16 else 0.85
    if not case.has_few_queries:
        return 0.95
    if case.is_decode and (case.q_heads, case.kv_heads, case.head_dims) == (*GROUPED, "128") and not case.label:
        return {(64, 4096): 1.75, (16, 8192): 1.75, (1, 65536): 1.6}.get((case.batch, case.kv_len), 0.98)
    return 0.98


@dataclass(frozen=True)
class Held:
    """What a case's speed is compared with: our own at another case of its set."""

    kind: str  # names a row of the summary
    against: str  # the other case's name
    target: Optional[float] = None  # the most extra time for the same work


def held_to(case: Case) -> List[Held]:
    if case.set == "dims":
        found = []
        for larger in ROUNDED.get((case.head_dim_qk, case.head_dim_vo), ()):
            other = replace(case, head_dim_qk=larger[0], head_dim_vo=larger[1])
            found.append(Held("hd %s against %s" % (case.head_dims, other.head_dims), other.name))
        return found
    if case.set == "ragged" and case.kv == "ragged":
        tokens = next(n for n in LENGTHS if case.label in ragged_mixes(n))
        lens = (tokens,) * (TOTAL_TOKENS // tokens)
        dense = replace(case, kv="dense", label="", q_lens=lens, kv_lens=lens)
        return [Held("ragged, %s" % case.label, dense.name, RAGGED_TARGET)]
    if case.set == "paged" and case.kv == "paged":
        target = next(target for least, target in PAGED_TARGETS if case.page_size >= least)
        return [Held("pages of %d" % case.page_size, replace(case, kv="dense", page_size=0).name, target)]
    if case.set == "window" and case.window is not None:
        return [Held("window %d" % (case.window[0] + 1), replace(case, window=None).name, WINDOW_TARGET)]
    return []
