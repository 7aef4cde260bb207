"""Records what reaches attention when a model of transformers runs on the meta device.

Tensors have shapes and no values there, but masks are made on the CPU: what a query sees is read off the mask itself.
"""

import contextlib
import dataclasses
import sys

import torch
from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "attnsmith_oracle"


@dataclasses.dataclass(frozen=True)
class Attention:
    """One layer's attention. kv_heads is None where the code repeats keys before the call."""

    q_heads: int
    kv_heads: int | None
    head_dim_qk: int
    head_dim_vo: int
    scale: float
    mask: str
    softcap: float | None = None
    sink: bool = False

    def __str__(self):
        heads = f"{self.q_heads}/{'?' if self.kv_heads is None else self.kv_heads}"
        extras = (f" softcap {self.softcap:g}" if self.softcap else "") + (" sink" if self.sink else "")
        return f"{heads} x {self.head_dim_qk}/{self.head_dim_vo} scale {self.scale:.5g} {self.mask}{extras}"


class Unjudgeable(Exception):
    """What reached attention cannot be told."""


def pattern_of(visible):
    """A [queries, keys] table of what is seen, as words."""
    queries, keys = visible.shape
    if bool(visible.all()):
        return "full"
    q = torch.arange(queries, device="cpu")[:, None] + (keys - queries)
    k = torch.arange(keys, device="cpu")[None, :]
    distance = q - k
    causal = distance >= 0
    if bool((visible == causal).all()):
        return "causal"
    left = int(distance[visible].max())
    right = int(-distance[visible].min())
    if bool((visible == (causal & (distance <= left))).all()):
        return f"causal window {left}"
    if bool((visible == ((distance <= left) & (distance >= -right))).all()):
        return f"full window {left} {right}"
    starts = (visible & causal).int().argmax(dim=1)
    chunk = int(starts[starts > 0].min()) if bool((starts > 0).any()) else 0
    if chunk and bool((visible == (causal & (q // chunk == k // chunk))).all()):
        return f"causal chunk {chunk}"
    return "another mask"


class Recorder:
    def __init__(self, queries):
        self.queries = queries
        self.calls = []
        self._patterns = {}

    def mask(self, batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, use_vmap=False,
             **_):
        """A mask for AttentionMaskInterface: the real one, on the CPU."""
        with torch.device("cpu"):
            mask = masking_utils.sdpa_mask(1, int(q_length), int(kv_length), 0, 0, mask_function, None,
                                           allow_is_causal_skip=False, use_vmap=use_vmap, device="cpu")
        return mask

    def _pattern(self, mask, is_causal, q_len, kv_len):
        if mask is None:
            return "causal" if is_causal and q_len > 1 else "full"
        if mask.device.type == "meta":
            return "unknown"
        if id(mask) in self._patterns:
            return self._patterns[id(mask)][1]
        table = mask.reshape(-1, *mask.shape[-2:])[0]
        if table.dtype != torch.bool:
            biased = (table != 0) & (table > torch.finfo(table.dtype).min / 2)
            if bool(biased.any()):
                return "a bias on the logits"
            table = table == 0
        pattern = pattern_of(table.expand(q_len, -1))
        self._patterns[id(mask)] = (mask, pattern)  # the mask is kept, so that its id stays its own
        return pattern

    def record(self, query, key, value, mask, scale, is_causal, softcap=None, sink=False, repeated=False):
        q_len, kv_len = query.shape[2], key.shape[2]
        if q_len != kv_len or q_len != (self.queries or q_len):
            return  # cross attention, or another part of the model
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        self.calls.append(Attention(query.shape[1], None if repeated and key.shape[1] == query.shape[1] else key.shape[1],
                                    query.shape[-1], value.shape[-1], scale,
                                    self._pattern(mask, is_causal, q_len, kv_len),
                                    float(softcap) if softcap else None, sink))

    def attention(self, module, query, key, value, attention_mask, scaling=None, is_causal=None, **words):
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if words.get("position_bias") is not None:
            raise Unjudgeable("a bias on the logits")
        self.record(query, key, value, attention_mask, scaling, causal, words.get("softcap"),
                    words.get("s_aux") is not None)
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    def sdpa(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
             **_):
        if query.dim() == 4:
            self.record(query, key, value, attn_mask, scale, is_causal, repeated=not enable_gqa)
        return query.new_empty(*query.shape[:-1], value.shape[-1])


def _zeros_on_cpu(function):
    """An overlay of masks that takes a tensor of paddings: here nothing is padded."""

    def overlay(size, left_padding):
        return function(size, torch.zeros(left_padding.shape, dtype=torch.long, device="cpu"))

    return overlay


@contextlib.contextmanager
def recording(queries, way, cpu_masks):
    """Within, calls of attention are recorded and give empty tensors."""
    recorder = Recorder(queries)
    changed = []

    def change(owner, name, value):
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    own_mask = None if way == NAME else masks[way]
    ALL_ATTENTION_FUNCTIONS.register(NAME, recorder.attention)
    if cpu_masks:
        masks.register(way, recorder.mask)
    change(torch.nn.functional, "scaled_dot_product_attention", recorder.sdpa)
    change(masking_utils, "find_packed_sequence_indices", lambda positions: None)
    change(masking_utils, "chunked_overlay", _zeros_on_cpu(masking_utils.chunked_overlay))
    if way == "eager":
        for name, module in list(sys.modules.items()):  # each model's file has its own
            if name.startswith("transformers.models.") and "eager_attention_forward" in vars(module):
                change(module, "eager_attention_forward", recorder.attention)
    try:
        yield recorder
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)
        if own_mask is not None:
            masks.register(way, own_mask)
