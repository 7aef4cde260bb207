"""A layer's decode as an engine runs it: sequences come and go, and each step is an append and an attention.

The caller keeps a history of its own: every key and value rotated and rounded by torch's separate operations, in tensors that no
kernel writes to. What attention gives is compared with fp64 over that history, and the pages with its bytes.
"""

import dataclasses
import math
import random
import time
import unittest

from gpu_support import DEVICE, GpuTest, reference, torch

import attnsmith

STEPS = 1000
SLOTS = 16  # sequences of a batch at most; rows of empty ones have no queries and no keys
CHUNK = 64  # of a prompt, in one step
PREFILLS = 2  # that one step has at most, beside one token of each of the others
MAX_TOKENS = SLOTS + PREFILLS * CHUNK
MAX_KV = 512
PAGE_SIZE = 16
MAX_PAGES = MAX_KV // PAGE_SIZE
Q_HEADS, KV_HEADS, HEAD_DIM = 16, 4, 128
GARBAGE = 2**31 - 7  # of a page table past a sequence's pages
CHECK_EVERY = 10  # steps
CHECKED_ROWS = 4
DIRECT_EVERY = 7  # steps that are launched by the plain functions, with the shapes that they have
LIMIT_SECONDS = 60


@dataclasses.dataclass
class Sequence:
    prompt: int
    length: int  # at the end
    pages: list
    held: int = 0  # tokens that the cache has

    @property
    def is_prefill(self):
        return self.held < self.prompt


class Scheduler:
    """Which sequences are in a step, with how many tokens, and which pages they have. On the host, as engines have it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.slots = [None] * SLOTS
        # Too few for all slots at their longest: what ended just now is used again.
        self.free = list(range(SLOTS * MAX_PAGES * 3 // 8))
        self.page_count = len(self.free)
        self.random.shuffle(self.free)
        self.finished = 0

    def step(self):
        """The new tokens of each slot. Those that ended in the last step are gone, and pages are there for the new ones."""
        for slot, sequence in enumerate(self.slots):
            if sequence is not None and sequence.held == sequence.length:
                self.free += sequence.pages
                self.slots[slot] = None
                self.finished += 1
        for slot, sequence in enumerate(self.slots):
            if sequence is None and self.random.random() < 0.3:
                self.admit(slot)
        counts, prefills = [0] * SLOTS, 0
        for slot, sequence in enumerate(self.slots):
            if sequence is None:
                continue
            if not sequence.is_prefill:
                counts[slot] = 1
            elif prefills < PREFILLS:
                counts[slot], prefills = min(CHUNK, sequence.prompt - sequence.held), prefills + 1
            sequence.held += counts[slot]
        return counts

    def admit(self, slot):
        prompt = round(math.exp(self.random.uniform(0, math.log(MAX_KV - 64))))
        length = prompt + self.random.randint(1, 64)
        needed = -(-length // PAGE_SIZE)
        if needed <= len(self.free):
            self.slots[slot] = Sequence(prompt, length, [self.free.pop() for _ in range(needed)])


class Loop:
    """Buffers of fixed addresses, two graphs that read them, and the caller's history."""

    def __init__(self, kv, kv_scale, slots, seed):
        self.kv, self.by_table = kv, slots == "table"
        self.scheduler = Scheduler(seed)
        self.random = random.Random(seed + 1)
        self.generator = torch.Generator(device=DEVICE)
        self.generator.manual_seed(seed)
        self.dtype = torch.bfloat16 if kv == "bf16" else torch.float8_e4m3fn
        columns = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
        self.qkv = torch.zeros(MAX_TOKENS, columns, dtype=torch.bfloat16, device=DEVICE)
        self.out = torch.zeros(MAX_TOKENS, Q_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
        pages = (self.scheduler.page_count, PAGE_SIZE, KV_HEADS, HEAD_DIM)
        # NaN wherever nothing was written: no key that a query sees may come from there.
        self.cache = [self.poison(*pages) for _ in range(2)]
        self.q_indptr = torch.zeros(SLOTS + 1, dtype=torch.int32, device=DEVICE)
        self.kv_lens = torch.zeros(SLOTS, dtype=torch.int32, device=DEVICE)
        self.table = torch.full((SLOTS, MAX_PAGES), GARBAGE, dtype=torch.int32, device=DEVICE)
        self.slot_mapping = torch.full((MAX_TOKENS,), -1, dtype=torch.int64, device=DEVICE)
        self.positions = torch.zeros(MAX_TOKENS, dtype=torch.int32, device=DEVICE)
        frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64, device=DEVICE) / HEAD_DIM)
        angles = torch.arange(MAX_KV, dtype=torch.float64, device=DEVICE)[:, None] * frequencies
        self.rope_table = torch.cat((angles.cos(), angles.sin()), 1).float()
        self.scales = {}
        if kv_scale is not None:
            heads = torch.arange(KV_HEADS if kv_scale == "head" else 1, dtype=torch.float32, device=DEVICE)
            self.scales = {"k_scale": 0.021 + heads / 64, "v_scale": 0.013 + heads / 128}
        # The caller's own, by slot and place.
        self.history = [self.poison(SLOTS, MAX_KV, KV_HEADS, HEAD_DIM) for _ in range(2)]
        self.statuses, self.calls, self.graphs = [], [], {}
        self.prepare(kv_scale, slots)

    def poison(self, *shape):
        """NaN, which in e4m3 is the byte 0x7f."""
        if self.kv == "bf16":
            return torch.full(shape, math.nan, dtype=torch.bfloat16, device=DEVICE)
        return torch.full(shape, 0x7f, dtype=torch.uint8, device=DEVICE).view(self.dtype)

    def parts(self, tokens=MAX_TOKENS):
        """q, k and v as views of the fused tensor."""
        fused = self.qkv[:tokens].view(tokens, Q_HEADS + 2 * KV_HEADS, HEAD_DIM)
        return fused.split((Q_HEADS, KV_HEADS, KV_HEADS), dim=1)

    def prepare(self, kv_scale, slots):
        """Kernels, and a graph for steps of decodes alone and one for those with prompts among them."""
        words = {"q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "kv": "paged", "page_size": PAGE_SIZE}
        if self.kv != "bf16":
            words.update(kv_dtype=self.kv, kv_scale=kv_scale)
        runtime = attnsmith.default_runtime()
        appending = runtime.prepare(op="append", slots=slots, rope="half", batch=SLOTS, q_len=CHUNK, **words)
        for name, longest, tokens in (("decode", 1, SLOTS), ("mixed", CHUNK, MAX_TOKENS)):
            attending = runtime.prepare(mask="causal", batch=SLOTS, q_len=longest, kv_len=MAX_KV, **words)
            q, k, v = self.parts(tokens)
            calls = [appending.bind_append(q=q, k=k, v=v, k_cache=self.cache[0], v_cache=self.cache[1], q_out=q,
                                           rope_table=self.rope_table, **self.scales, **self.places(tokens, longest)),
                     attending.bind(q, *self.cache, self.out[:tokens], q_indptr=self.q_indptr, kv_lens=self.kv_lens,
                                    page_table=self.table, max_q_len=longest, max_kv_len=MAX_KV, **self.scales)]
            self.calls += calls
            self.graphs[name] = self.graph_of(calls)

    def places(self, tokens, longest):
        """Where the new tokens go, as append takes it: by lengths and pages, or a slot for each."""
        if not self.by_table:
            return {"slot_mapping": self.slot_mapping[:tokens], "positions": self.positions[:tokens]}
        return {"q_indptr": self.q_indptr, "kv_lens": self.kv_lens, "page_table": self.table, "max_q_len": longest,
                "max_kv_len": MAX_KV}

    def graph_of(self, calls):
        """Both launches in one. They are made once before, with lengths that are all 0."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls:
                call.launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call.launch()
        return graph

    def step(self, number):
        """One step. Gives the new tokens of each slot."""
        counts = self.scheduler.step()
        self.write_batch(counts)
        total = sum(counts)
        self.qkv[:total].normal_(generator=self.generator)
        self.remember(total)
        if self.is_checked(number):
            self.out.fill_(math.nan)
        longest = max(counts)
        if number % DIRECT_EVERY == 0 and total:
            self.launch_directly(total, CHUNK if longest > 1 else 1)
        else:
            self.graphs["mixed" if longest > 1 else "decode"].replay()
        return counts

    @staticmethod
    def is_checked(number):
        return number % CHECK_EVERY == 0 or number >= STEPS - 3

    def write_batch(self, counts):
        """Lengths, pages and slots to the memory that the graphs read. Lengths are those after the append."""
        indptr, kv_lens, table, slot_of, place_of, mapping = [0], [], [], [], [], []
        for slot, (count, sequence) in enumerate(zip(counts, self.scheduler.slots)):
            indptr.append(indptr[-1] + count)
            held = sequence.held if sequence else 0
            kv_lens.append(held)
            pages = sequence.pages if sequence else []
            table.append(pages + [GARBAGE] * (MAX_PAGES - len(pages)))
            for place in range(held - count, held):
                slot_of.append(slot)
                place_of.append(place)
                mapping.append(pages[place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE)
        rest = MAX_TOKENS - len(mapping)
        for buffer, values in ((self.q_indptr, indptr), (self.kv_lens, kv_lens), (self.table, table),
                               (self.slot_mapping, mapping + [-1] * rest), (self.positions, place_of + [0] * rest)):
            buffer.copy_(torch.tensor(values, dtype=buffer.dtype))
        self.slot_of, self.place_of = (torch.tensor(some, dtype=torch.int64, device=DEVICE) for some in (slot_of, place_of))

    def remember(self, total):
        """The new tokens as the caller's own operations have them, before any launch."""
        q, k, v = self.parts(total)
        self.queries = self.rotated(q).to(torch.bfloat16)
        for history, numbers, name in zip(self.history, (self.rotated(k), v.float()), ("k_scale", "v_scale")):
            if self.scales:
                numbers = (numbers * (1 / self.scales[name])[:, None]).clamp(-448, 448)
            self.as_bits(history)[self.slot_of, self.place_of] = self.as_bits(numbers.to(self.dtype))

    def rotated(self, x):
        cos, sin = self.rope_table[self.place_of][:, None].chunk(2, -1)
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    @staticmethod
    def as_bits(tensor):
        return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor.view(torch.int16)

    def launch_directly(self, total, longest):
        q, k, v = self.parts(total)
        _, status = attnsmith.append(k, v, *self.cache, q=q, q_out=q, rope_table=self.rope_table, page_order="NHD",
                                     return_status=True, **self.scales, **self.places(total, longest))
        self.statuses.append(status)
        _, status = attnsmith.paged_attention(q, tuple(self.cache), self.table, self.kv_lens, q_indptr=self.q_indptr,
                                              max_q_len=longest, max_kv_len=MAX_KV, causal=True, return_status=True,
                                              out=self.out[:total], **self.scales)
        self.statuses.append(status)

    # ---- what is compared ----

    def numbers(self, stored, name):
        """fp64, of what is stored."""
        scale = self.scales.get(name)
        return stored.double() if scale is None else stored.double() * scale.double()[:, None]

    def sampled(self, counts):
        """(row of the batch's tokens, slot, keys that it sees): the ends of a prompt's chunk, and tokens of any sequence."""
        rows, first = [], 0
        for slot, count in enumerate(counts):
            held = self.scheduler.slots[slot].held if count else 0
            rows += [(first + i, slot, held - count + i + 1) for i in range(count)]
            first += count
        chosen = self.random.sample(rows, min(CHECKED_ROWS, len(rows)))
        longest = max(range(SLOTS), key=counts.__getitem__)
        if counts[longest] > 1:
            chosen += [row for row in rows if row[1] == longest][::counts[longest] - 1]
        return chosen

    def wanted(self, row, slot, keys):
        k, v = (self.numbers(history[slot, :keys], name)
                for history, name in zip(self.history, ("k_scale", "v_scale")))
        return reference(self.queries[row:row + 1], k, v)[0]

    def in_pages(self, slot, which):
        """The bits that the pages of a slot have, and those of the history, of all tokens that it holds."""
        sequence = self.scheduler.slots[slot]
        pages = torch.tensor(sequence.pages, dtype=torch.int64, device=DEVICE)
        bits = self.as_bits(self.cache[which])[pages].flatten(0, 1)[:sequence.held]
        return bits, self.as_bits(self.history[which])[slot, :sequence.held]


class ServingLoop(GpuTest):
    def run_loop(self, kv, kv_scale, slots):
        begun = time.monotonic()
        loop = Loop(kv, kv_scale, slots, seed=len(kv) + len(slots))
        kinds, compared = {"mixed": 0, "decode": 0}, 0
        for number in range(STEPS):
            counts = loop.step(number)
            kinds["mixed" if max(counts) > 1 else "decode"] += 1
            if not loop.is_checked(number):
                continue
            what = f"step {number}"
            total = sum(counts)
            for row, slot, keys in loop.sampled(counts):
                self.assert_near(loop.out[row:row + 1], loop.wanted(row, slot, keys), f"{what}, row {row} of {keys} keys")
                compared += 1
            self.assertTrue(torch.equal(loop.parts(total)[0], loop.queries), f"{what}: queries")
            self.assertFalse(loop.out[:total].isnan().any().item(), f"{what}: a row was not written")
            self.assertTrue(loop.out[total:].isnan().all().item(), f"{what}: a row of no sequence was written")
            held = [slot for slot, sequence in enumerate(loop.scheduler.slots) if sequence and sequence.held]
            for which, name in enumerate(("keys", "values")):
                found, kept = loop.in_pages(loop.random.choice(held), which) if held else (loop.q_indptr,) * 2
                self.assertTrue(torch.equal(found, kept), f"{what}: {name} in the pages")
        for call in loop.calls:
            self.assertFalse(call.status(), call.describe())
        for status in loop.statuses:
            self.assertFalse(attnsmith.CallStatus(status))
        # That there was something to see.
        self.assertGreater(loop.scheduler.finished, 100)
        self.assertGreater(min(kinds.values()), 50)
        self.assertGreater(compared, 300)
        return time.monotonic() - begun

    def check_loops(self, *loops):
        seconds = 0.0
        for loop in loops:
            with self.subTest(loop=loop):
                seconds += self.run_loop(*loop)
        self.assertLess(seconds, LIMIT_SECONDS)

    def test_keys_of_16_bits(self):
        self.check_loops(("bf16", None, "table"), ("bf16", None, "mapping"))

    def test_keys_of_8_bits(self):
        if not hasattr(torch, "float8_e4m3fn"):
            self.skipTest(f"torch {torch.__version__} has no floats of 8 bits")
        self.check_loops(("e4m3", "tensor", "table"), ("e4m3", "head", "mapping"))


if __name__ == "__main__":
    unittest.main()
