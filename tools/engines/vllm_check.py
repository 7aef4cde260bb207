#!/usr/bin/env python3
"""Whether vLLM with attnsmith generates the tokens that it generates with its own attention.

    vllm_check.py [--models REGEX] [--planted] [--json FILE] [--logs FOLDER]

Models have weights from a seed (seeded_models.py). For each, the peer backend (FLASH_ATTN, or TRITON_ATTN where that does not
serve the model) generates greedy tokens from random prompts of different lengths. A step is decided if the two largest logits
differ by more than four times bf16's own error: the root mean square of the difference of logprobs between the peer and
TRITON_ATTN, or TRITON_ATTN with other chunks of the prompts, over all steps with equal prefixes. At a decided step attnsmith has to choose the peer's token. Where the tokens
differ at another step, attnsmith goes on from the peer's.

--planted: three errors are planted into attnsmith's calls, a lost page, a window that is one key wider, and two KV heads that are
swapped. Each has to fail the same check.

Exit code 1 if a token is wrong, if fewer than half of a model's steps are decided, or if a planted error is not found.
"""

import argparse
import json
import pathlib
import random
import re
import sys
import tempfile

import seeded_models
from vllm_engines import Engine, our_name

LENGTHS = (1, 15, 16, 17, 33, 64, 100, 129, 257, 400, 513, 700, 1000, 1500, 2100, 3000)
TOKENS = 48
FACTOR = 4  # times bf16's own error
LEAST_DECIDED = 0.5
MOST_ROUNDS = 12
PLANTED_MODELS = {"lost page": "llama-3.1", "wider window": "gemma-3", "swapped KV heads": "llama-3.1"}
COMMON = {"max_model_len": 4096, "gpu_memory_utilization": 0.25, "max_num_batched_tokens": 2048,
          "max_num_seqs": 64, "compilation_config": {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [16, 64]}}


def prompts_of(seed=0):
    generator = random.Random(seed)
    return [[generator.randrange(seeded_models.VOCABULARY) for _ in range(length)] for length in LENGTHS]


def noise_of(reference, other):
    """Root mean square of the difference of the chosen tokens' logprobs, over steps with equal prefixes."""
    squares = []
    for one, two in zip(reference, other):
        for step, token in enumerate(one["tokens"]):
            found = dict(map(tuple, two["best"][step])).get(token)
            if found is not None:
                squares.append((found - one["best"][step][0][1]) ** 2)
            if two["tokens"][step] != token:
                break
    return (sum(squares) / len(squares)) ** 0.5


def compare(engine, prompts, reference, bound):
    """Decided steps, all steps, and the steps with a wrong token: [(prompt, step)]. Steps with another token that are not
    decided are followed by the peer's token."""
    decided = sum(step[0][1] - step[1][1] > bound for one in reference for step in one["best"])
    total = sum(len(one["tokens"]) for one in reference)
    wrong, at = [], {number: 0 for number in range(len(prompts))}
    for _ in range(MOST_ROUNDS):
        if not at:
            break
        numbers = sorted(at)
        most = max(TOKENS - at[number] for number in numbers)
        found = engine.generate(prompts=[prompts[number] + reference[number]["tokens"][:at[number]] for number in numbers],
                                tokens=most)
        for number, one in zip(numbers, found):
            begin, peer = at.pop(number), reference[number]
            for step in range(begin, TOKENS):
                if one["tokens"][step - begin] == peer["tokens"][step]:
                    continue
                if peer["best"][step][0][1] - peer["best"][step][1][1] > bound:
                    wrong.append((number, step))
                elif step + 1 < TOKENS:
                    at[number] = step + 1
                break
    if at:
        raise RuntimeError(f"{len(at)} prompts were not compared to their ends in {MOST_ROUNDS} rounds")
    return decided, total, wrong


class Check:
    def __init__(self, folder, logs):
        self.folder, self.logs, self.name = folder, logs, our_name()

    def engine(self, model, backend, **more):
        shape = seeded_models.SHAPES[model]
        log = None if self.logs is None else self.logs / f"{model}-{backend}-{more.get('planted', 'plain')}.log".replace(" ", "_")
        return Engine(log, model=str(self.folder / model), backend=backend, sinks=shape.sinks, **{**COMMON, **more})

    def reference(self, model):
        """The peer's tokens, and the least gap of a decided step."""
        if not (self.folder / model).exists():
            seeded_models.write(model, self.folder / model)
        shape, prompts = seeded_models.SHAPES[model], prompts_of()
        other = "TRITON_MLA" if shape.peer.endswith("_MLA") else "TRITON_ATTN"
        # Where only one backend serves a model, other chunks of the prompts make other roundings.
        more = {"max_num_batched_tokens": 256} if other == shape.peer else {}
        with self.engine(model, shape.peer) as peer:
            first = peer.generate(prompts=prompts, tokens=TOKENS)
        with self.engine(model, other, **more) as second:
            noise = noise_of(first, second.generate(prompts=prompts, tokens=TOKENS, logprobs=5))
        if noise == 0:
            raise RuntimeError(f"{model}: {shape.peer} and {other} agree to the last bit, so they do not tell bf16's error")
        return first, FACTOR * noise

    def run(self, model, reference, bound, planted=None):
        more = {} if planted is None else {"planted": planted, "enforce_eager": True}
        with self.engine(model, self.name, **more) as engine:
            start = engine.wait()
            decided, total, wrong = compare(engine, prompts_of(), reference, bound)
        return {"model": model, "planted": planted, "decided": decided, "steps": total, "wrong": len(wrong),
                "first_wrong": wrong[:3], "bound": bound, "start": start}


def problem_of(row):
    if row["planted"]:
        return None if row["wrong"] else "the planted error was not found"
    if row["wrong"]:
        return f"{row['wrong']} prompts have a wrong token"
    if row["decided"] < LEAST_DECIDED * row["steps"]:
        return "fewer than half of the steps are decided"
    if not any("Attnsmith" in name for name in row["start"]["backends"]):
        return "the engine did not use attnsmith"
    return None


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", metavar="REGEX")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--logs", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="attnsmith-vllm-") as folder:
        check = Check(pathlib.Path(folder), options.logs)
        for model in (name for name in seeded_models.SHAPES if re.search(options.models, name)):
            reference, bound = check.reference(model)
            planted = [name for name, of in PLANTED_MODELS.items() if options.planted and of == model]
            for error in (None, *planted):
                row = check.run(model, reference, bound, error)
                row["problem"] = problem_of(row)
                rows.append(row)
                print(f"{model}{f', planted: {error}' if error else ''}: {row['decided']} of {row['steps']} steps decided, "
                      f"{row['wrong']} wrong: {row['problem'] or 'as it should be'}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"schema": "attnsmith.vllm-check/1", "rows": rows}, indent=1))
    return 1 if any(row["problem"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
