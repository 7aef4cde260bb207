"""The right answer for a sample of rows, in float64: cheap at any length, and independent of every provider."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, List, Tuple

from .cases import Case
from .tensors import Tensors, gathered, numbers_of

SAMPLED_SEQUENCES = 4
SAMPLED_OF_MIXES = 16  # where lengths differ, so that most kinds of them are seen
SAMPLED_QUERIES = 32  # of each sequence; all heads of each
SAMPLED_ROWS = 128  # of all sequences, more or less


@dataclass
class Reference:
    rows: Any  # indices of tokens, over all sequences
    values: Any  # float64 [rows, heads, head_dim_vo]
    noise: Any = None  # likewise: what rounding the softmax's weights to 8 bits may change, where it is done


@dataclass
class Verdict:
    right: bool
    max_error: float
    reason: str = ""


def sample(case: Case) -> List[Tuple[int, List[int]]]:
    """(sequence, queries): the sequences with the most queries, the most keys and the fewest, the first, the last and
    others; the first and last query of each, and others."""
    rng = random.Random(case.seed)
    lens = case.q_lens
    every = range(case.batch)
    sequences = [max(every, key=lens.__getitem__), max(every, key=case.kv_lens.__getitem__),
                 min(every, key=case.kv_lens.__getitem__), 0, case.batch - 1]
    sequences += rng.sample(every, min(SAMPLED_OF_MIXES, case.batch))
    chosen = list(dict.fromkeys(s for s in sequences if lens[s] > 0))
    picked: List[Tuple[int, List[int]]] = []
    for sequence in chosen[:SAMPLED_OF_MIXES if case.label else SAMPLED_SEQUENCES]:
        if sum(len(queries) for _, queries in picked) > SAMPLED_ROWS - SAMPLED_QUERIES:
            break
        length = lens[sequence]
        queries = {0, length - 1} | set(rng.sample(range(length), min(SAMPLED_QUERIES - 2, length)))
        picked.append((sequence, sorted(queries)))
    return picked


def keys_and_values(torch: Any, case: Case, tensors: Tensors, sequence: int) -> Tuple[Any, Any]:
    """float64 [kv_len, kv_heads, dim] of one sequence, whatever the storage: what is stored times its scale."""
    k, v = stored_keys_and_values(torch, case, tensors, sequence)
    return numbers_of(k, tensors.k_scale, torch.float64), numbers_of(v, tensors.v_scale, torch.float64)


def stored_keys_and_values(torch: Any, case: Case, tensors: Tensors, sequence: int) -> Tuple[Any, Any]:
    length = case.kv_lens[sequence]
    if case.kv == "ragged":
        start = sum(case.kv_lens[:sequence])
        return tensors.k[start:start + length], tensors.v[start:start + length]
    if case.kv == "paged":
        pages = tensors.page_table[sequence, :case.page_counts[sequence]].long()
        return tuple(gathered(torch, t, pages).flatten(0, 1)[:length] for t in (tensors.k, tensors.v))
    return tensors.k[sequence, :length], tensors.v[sequence, :length]


# Weights of 4 significant bits are off by up to 2^-4 of themselves, and by 0.43 of that in the root of the mean square.
# Three such steps of sqrt(sum of (weight * value)^2) bound any sum of up to 9 keys, and are 7 deviations of longer ones.
NOISE_OF_WEIGHTS = 3 * 2.0 ** -4


def make_reference(torch: Any, case: Case, tensors: Tensors, rounded: bool = False) -> Reference:
    """`rounded`: for who computes with Q and the softmax's weights of 8 bits. The inputs are then that Q, which is as
    exact a number as any other; the weights are that provider's own doing, and no input, so there is noise."""
    rows, values, noise = [], [], []
    queries_of = numbers_of(tensors.q_rounded, tensors.q_scale, torch.float64) if rounded else tensors.q
    flat_q = queries_of.reshape(-1, case.q_heads, case.head_dim_qk)
    for sequence, queries in sample(case):
        first = sum(case.q_lens[:sequence])
        at_rows = torch.tensor([first + query for query in queries], device=flat_q.device)
        k, v = (t.transpose(0, 1) for t in keys_and_values(torch, case, tensors, sequence))
        # [kv_heads, group * queries, dim]: the heads of a group share their keys.
        q = flat_q[at_rows].double().view(len(queries), case.kv_heads, case.group, -1)
        q = q.permute(1, 2, 0, 3).reshape(case.kv_heads, case.group * len(queries), -1)
        scores = torch.matmul(q, k.transpose(1, 2)) * case.head_dim_qk ** -0.5
        scores = scores.view(case.kv_heads, case.group, len(queries), -1)
        scores.masked_fill_(~seen(torch, case, sequence, queries, flat_q.device), float("-inf"))
        weights = torch.softmax(scores, dim=-1).nan_to_num_(0.0)  # a row that sees nothing is 0
        weights = weights.view(case.kv_heads, case.group * len(queries), -1)

        def by_query(product: Any) -> Any:
            made = product.view(case.kv_heads, case.group, len(queries), -1).permute(2, 0, 1, 3)
            return made.reshape(len(queries), case.q_heads, -1)

        rows.append(at_rows)
        values.append(by_query(torch.matmul(weights, v)))
        if rounded:
            noise.append(by_query(NOISE_OF_WEIGHTS * torch.matmul(weights.square(), v.square()).sqrt()))
    return Reference(torch.cat(rows), torch.cat(values), torch.cat(noise) if rounded else None)


def seen(torch: Any, case: Case, sequence: int, queries: List[int], device: Any) -> Any:
    """bool [queries, kv_len]: what the mask leaves, bottom-right aligned."""
    at = torch.tensor(queries, device=device).view(-1, 1) + case.kv_lens[sequence] - case.q_lens[sequence]
    keys = torch.arange(case.kv_lens[sequence], device=device).view(1, -1)
    visible = torch.ones(len(queries), case.kv_lens[sequence], dtype=torch.bool, device=device)
    if case.causal:
        visible &= keys <= at
    if case.window is not None:
        visible &= (keys >= at - case.window[0]) & (keys <= at + case.window[1])
    return visible


def check(torch: Any, case: Case, reference: Reference, out: Any) -> Verdict:
    expected = (sum(case.q_lens), case.q_heads, case.head_dim_vo)
    if out.numel() != expected[0] * expected[1] * expected[2]:
        return Verdict(False, float("inf"), "the output's shape is %s" % (tuple(out.shape),))
    flat = out.reshape(expected)
    if not bool(torch.isfinite(flat).all()):  # every row, not only the sampled ones
        return Verdict(False, float("inf"), "the output has infinities or NaN")
    error = (flat[reference.rows].double() - reference.values).abs()
    allowed = case.tolerance + case.tolerance * reference.values.abs()
    if reference.noise is not None:
        allowed = allowed + reference.noise
    worst = float(error.max())
    if bool((error > allowed).any()):
        share = float((error > allowed).double().mean())
        return Verdict(False, worst, "%.3g%% of the sampled outputs are off, by up to %.3g" % (100 * share, worst))
    return Verdict(True, worst)
