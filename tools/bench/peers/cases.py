"""What is measured: problems, how much work each is, and the sets that --cases names.

Nothing here needs torch or a GPU.
"""

from __future__ import annotations

import functools
import random
import zlib
from dataclasses import asdict, dataclass
from typing import Callable, Dict, List, Optional, Tuple

TOTAL_TOKENS = 16384
WIDTH = 2048  # q_heads * head_dim of the prefill grid, as in the FlashAttention papers
ELEMENT_BYTES = 2
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
    """One problem. Lengths are by sequence; all are equal unless the KV is ragged."""

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
    label: str = ""  # tells ragged mixes apart
    shared_kv: bool = False  # v is the first head_dim_vo columns of k (latent attention)

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
    def family(self) -> str:
        """All but the lengths: the cases of one family are the points of one line in a plot."""
        words = [self.dtype, "hd" + self.head_dims, "%d/%d" % (self.q_heads, self.kv_heads)]
        if not self.is_decode:
            words.append("causal" if self.causal else "full")
        if self.window is not None:
            words.append("window %d" % (self.window[0] + 1))
        if self.kv == "paged":
            words.append("paged by %d" % self.page_size)
        elif self.is_decode:
            words.append("dense")
        return " ".join(words)

    @property
    def name(self) -> str:
        if self.kv == "ragged":
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
        """Q, K, V and O once each."""
        queries = sum(self.q_lens) * self.q_heads * (self.head_dim_qk + self.head_dim_vo)
        kept = self.head_dim_qk if self.shared_kv else self.head_dim_qk + self.head_dim_vo
        return float(ELEMENT_BYTES) * (queries + sum(self.kv_lens) * self.kv_heads * kept)

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


def prefill() -> List[Case]:
    cases = []
    every, few = (512, 1024, 2048, 4096, 8192, 16384), (1024, 4096, 16384)
    for dtype, lengths in (("bf16", every), ("fp16", few)):
        for head_dim in (64, 128, 256):
            heads = WIDTH // head_dim
            for causal in (False, True):
                cases += [square("prefill", dtype, head_dim, (heads, heads), tokens, causal) for tokens in lengths]
    for causal in (False, True):
        cases += [square("prefill", "bf16", 128, (32, 8), tokens, causal) for tokens in every]
    return cases


def dims() -> List[Case]:
    cases = []
    for head_dim, head_dim_vo in ((80, 80), (96, 96), (112, 112), (160, 160), (192, 192), (192, 128)):
        for causal in (False, True):
            for tokens in (1024, 4096, 16384):
                cases.append(square("dims", "bf16", head_dim, (16, 16), tokens, causal, head_dim_vo=head_dim_vo))
    return cases


def ragged_mixes() -> Dict[str, Tuple[int, ...]]:
    """Lengths that add up to 16k: one long sequence with ever shorter ones; a random mix of 32."""
    halves = [TOTAL_TOKENS >> (i + 1) for i in range(11)]
    halves.append(TOTAL_TOKENS - sum(halves))
    cuts = sorted(random.Random(1).sample(range(1, TOTAL_TOKENS), 31))
    mix = [b - a for a, b in zip([0] + cuts, cuts + [TOTAL_TOKENS])]
    return {"halving": tuple(halves), "random": tuple(mix)}


def ragged() -> List[Case]:
    cases = []
    for label, lens in ragged_mixes().items():
        for head_dim in (64, 128):
            for heads in ((WIDTH // head_dim, WIDTH // head_dim), (32, 8)):
                for causal in (False, True):
                    cases.append(Case("ragged", "bf16", lens, lens, heads[0], heads[1], head_dim, head_dim,
                                      causal=causal, kv="ragged", label=label))
    return cases


def paged() -> List[Case]:
    return [square("paged", "bf16", 128, (32, 8), tokens, True, kv="paged", page_size=page_size)
            for page_size in (1, 16, 64, 256) for tokens in (1024, 4096, 16384)]


def window() -> List[Case]:
    grid = ((64, (32, 32)), (128, (16, 16)), (128, (32, 8)), (256, (8, 8)))
    return [square("window", "bf16", head_dim, heads, TOTAL_TOKENS, True, window=(1023, 0))
            for head_dim, heads in grid]


DECODE_GRID = ((1, 65536), (16, 8192), (64, 4096), (128, 2048), (256, 1024))


def decode() -> List[Case]:
    cases = []
    for heads in ((32, 8), (32, 32), (64, 8)):
        for kv, page_size in (("dense", 0), ("paged", 16), ("paged", 64)):
            for batch, kv_len in DECODE_GRID:
                cases.append(Case("decode", "bf16", (1,) * batch, (kv_len,) * batch, heads[0], heads[1], 128, 128,
                                  kv=kv, page_size=page_size))
    return cases


def mla() -> List[Case]:
    """Latent attention's decode, for the peers that do it; not in the default sets."""
    return [Case("mla", "bf16", (1,) * batch, (kv_len,) * batch, 128, 1, 576, 512, kv="paged", page_size=64,
                 shared_kv=True)
            for batch, kv_len in ((1, 65536), (16, 8192), (64, 4096), (128, 2048))]


SETS: Dict[str, Callable[[], List[Case]]] = {
    "prefill": prefill, "dims": dims, "ragged": ragged, "paged": paged, "window": window, "decode": decode,
    "mla": mla,
}
DEFAULT_SETS = ("prefill", "dims", "ragged", "paged", "window", "decode")


def in_quick(case: Case) -> bool:
    """A tenth or so of the cases that still touches every set and every kind of problem."""
    if case.dtype != "bf16":
        return False
    if case.set == "prefill":
        return case.head_dim_qk == 128 and case.group == 1 and case.kv_len in (1024, 16384)
    if case.set in ("dims", "paged"):
        return case.causal and case.kv_len == 4096 and case.page_size in (0, 1, 16)
    if case.set == "decode":
        return case.group == 4 and case.page_size in (0, 16) and case.kv_len in (8192, 2048)
    if case.set == "ragged":
        return case.head_dim_qk == 128 and case.causal and case.group == 1
    return case.group == 1 and case.head_dim_qk == 128 or case.set == "mla" and case.kv_len == 8192


def select(sets: List[str], dtypes: List[str], quick: bool) -> List[Case]:
    cases = [case for name in sets for case in SETS[name]()]
    return [case for case in cases if case.dtype in dtypes and (not quick or in_quick(case))]
