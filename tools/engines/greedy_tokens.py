"""Greedy tokens of two engines, compared wherever rounding leaves no doubt about them.

An answer is what Worker.generate() gives for a prompt: {"tokens": [...], "best": [[[token, logprob], ...] of each step]}.
"""

import random

import seeded_models

LENGTHS = (1, 15, 16, 17, 33, 64, 100, 129, 257, 400, 513, 700, 1000, 1500, 2100, 3000)
TOKENS = 48
FACTOR = 4  # times bf16's own error
LEAST_DECIDED = 0.5


def prompts_of(lengths=LENGTHS, seed=0, vocabulary=seeded_models.VOCABULARY):
    generator = random.Random(seed)
    return [[generator.randrange(vocabulary) for _ in range(length)] for length in lengths]


def gap(best, tokens=None):
    """The logprob of the first of these tokens over that of the second, of one step; None if one of them is not among the best.
    Without tokens, of the two best."""
    if tokens is None:
        return best[0][1] - best[1][1]
    found = dict(map(tuple, best))
    return found[tokens[0]] - found[tokens[1]] if all(token in found for token in tokens) else None


def noise_of(reference, other):
    """Root mean square of what the gap between the reference's two best tokens differs by, over steps with equal prefixes."""
    squares = []
    for one, two in zip(reference, other):
        for step, token in enumerate(one["tokens"]):
            best = one["best"][step]
            found = gap(two["best"][step], [best[0][0], best[1][0]])
            if found is not None:
                squares.append((found - gap(best)) ** 2)
            if two["tokens"][step] != token:
                break
    return (sum(squares) / len(squares)) ** 0.5


def wrong_of(reference, other, bound):
    """How many answers first differ from the reference's at a decided step."""
    firsts = (next((step for step, token in enumerate(one["tokens"]) if two["tokens"][step] != token), None)
              for one, two in zip(reference, other))
    return sum(step is not None and gap(one["best"][step]) > bound for step, one in zip(firsts, reference))


def compare(engine, prompts, reference, bound):
    """Decided steps, all steps, and the steps with a wrong token: [{"prompt", "step", "reference", "found"}], the last two the
    best tokens. A step is decided if the gap between the two best tokens of the reference is more than `bound`. Steps with
    another token that are not decided are followed by the reference's token."""
    decided = sum(gap(step) > bound for one in reference for step in one["best"])
    total = sum(len(one["tokens"]) for one in reference)
    wrong, at = [], {number: 0 for number in range(len(prompts))}
    while at:  # each time all of them are at a later step
        numbers = sorted(at)
        most = max(TOKENS - at[number] for number in numbers)
        found = engine.generate(prompts=[prompts[number] + reference[number]["tokens"][:at[number]] for number in numbers],
                                tokens=most)
        for number, one in zip(numbers, found):
            begin, peer = at.pop(number), reference[number]
            for step in range(begin, TOKENS):
                if one["tokens"][step - begin] == peer["tokens"][step]:
                    continue
                if gap(peer["best"][step]) > bound:
                    wrong.append({"prompt": number, "step": step, "reference": peer["best"][step][:2],
                                  "found": one["best"][step - begin][:2]})
                elif step + 1 < TOKENS:
                    at[number] = step + 1
                break
    return decided, total, wrong


def differing_batches(engine, needle, alone, sizes, seed=0):
    """Of batches of these sizes with `needle` at a random place, those in which its tokens or logprobs are not those of
    `alone`, to the last bit: [size, ...]."""
    generator = random.Random(seed)
    different = []
    for size in sizes:
        prompts = prompts_of([generator.choice(LENGTHS) for _ in range(size - 1)], seed=size)
        place = generator.randrange(size)
        prompts.insert(place, needle)
        if engine.generate(prompts=prompts, tokens=len(alone["tokens"]))[place] != alone:
            different.append(size)
    return different
