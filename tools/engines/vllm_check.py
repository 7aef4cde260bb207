#!/usr/bin/env python3
"""Whether vLLM with attnsmith generates what it has to generate, and starts as it should.

    vllm_check.py [--models REGEX] [--checks REGEX] [--jobs N] [--tensor-parallel N] [--context-parallel N] [--json FILE]
                  [--logs FOLDER]

Models have weights from a seed (seeded_models.py); the check "tokens" is made with all of them. --jobs: how many engines run at
the same time on the GPU, each with 5 GB, 1 if not given. --tensor-parallel and --context-parallel: over how many GPUs attnsmith's
engine, and the peer's that shows bf16's error, divide heads and, in decodes, keys. Logs of engines go to a temporary folder that is
named, or to FOLDER.

Needs a GPU, vLLM, and transformers that knows the models. All of it takes 5 to 10 minutes with --jobs 8 on 16 cores.

tokens: the peer backend (FLASH_ATTN, or TRITON_ATTN where that does not serve the model) generates greedy tokens from random
prompts of different lengths. A step is decided if the gap between the logprobs of its two best tokens is more than four times
bf16's own error: the root mean square of what that gap differs by between the peer and TRITON_ATTN, or between the peer and itself
with other chunks of the prompts or, with several GPUs, divided as attnsmith is, over all steps with equal prefixes. At a decided
step attnsmith has to choose the peer's token.
Where the tokens differ at another step, attnsmith goes on from the peer's. At least half of the steps have to be decided.

prefix: tokens, where the first half of every second prompt was cached before, so that prompts with a context and without share
steps.

compiled: tokens, of engines with vLLM's own compilation: torch.compile, and graphs of mode FULL_AND_PIECEWISE. All other checks run
without torch.compile, which takes most of a start, and with graphs of mode FULL.

planted: errors are planted into attnsmith's calls, a lost page, a window that is one key wider, and two KV heads that are swapped.
Each has to fail the check of tokens.

fp8: tokens, with an fp8 KV cache, against TRITON_ATTN without its rounding of queries to fp8, which attnsmith does not do. What it
differs by from itself with other chunks of the prompts is the error.

ngram: tokens, with drafts by ngram speculation, of a model with few tokens, so that some are guessed. Drafts have to be accepted.

invariance: with VLLM_BATCH_INVARIANT=1 a prompt's tokens and logprobs have the same bits alone and in batches of 2 to 64, and the
logprobs of decodes are those of one prefill. Without the variable some batch has to differ, else the check tells nothing.

start: two engines start at the same time on an empty cache; then the command prewarm fills another one, and an engine starts on
it with ATTNSMITH_ON_MISS=error and generates. Both caches have to hold the same keys. Runs by itself, since it is timed. Needs the
command attnsmith, in PATH or as ATTNSMITH_BIN.

Exit code 1 if a check fails, 2 if something is missing.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

import seeded_models
from greedy_tokens import FACTOR, LEAST_DECIDED, TOKENS, compare, differing_batches, noise_of, prompts_of, wrong_of
from vllm_engines import Engine, Failed, folder_of_logs, matching, our_name, positive, run_tool

PLANTED_MODELS = {"lost page": "llama-3.1", "wider window": "gemma-3", "swapped KV heads": "llama-3.1"}
COMMON = {"max_model_len": 4096, "kv_cache_memory_bytes": 3 << 30, "gpu_memory_utilization": 0.05, "max_num_batched_tokens": 2048,
          "max_num_seqs": 64, "compilation_config": {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [16, 64]}}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
NEEDLE, BATCHES = 7, (2, 3, 5, 16, 31, 64)  # a prompt by its number, and sizes of batches


class Check:
    """One check of one model: its rows, {"problem": None or why it failed, ...}."""

    def __init__(self, model, folder, options, slots):
        self.model, self.shape, self.folder, self.options, self._slots = model, seeded_models.SHAPES[model], folder, options, slots
        self._name, self._lock, self._reference = our_name(), threading.Lock(), None

    @contextlib.contextmanager
    def engine(self, backend, what="plain", environment=None, **more):
        """At most options.jobs at a time."""
        with self._slots, self._engine(backend, what, environment, **more) as engine:
            yield engine

    def _engine(self, backend, what, environment=None, **more):
        log = self.options.logs / f"{self.model}-{backend}-{what}.log".replace(" ", "_")
        return Engine(log, environment, model=str(self.folder), backend=backend, hf_overrides=self.shape.overrides,
                      sinks_std=seeded_models.SINK_STD if self.shape.sinks else None, **{**COMMON, **more})

    def ours(self, what="plain", environment=None, **more):
        return self.engine(self._name, what, environment, **self._division, **more)

    @property
    def _division(self):
        """How an engine's work is divided among GPUs; empty: it has one."""
        if self.options.tensor_parallel == self.options.context_parallel == 1:
            return {}
        return {"tensor_parallel_size": self.options.tensor_parallel, "decode_context_parallel_size": self.options.context_parallel}

    def reference(self, prompts, peer=None, other=None, **options):
        """The peer's answers, the least gap of a decided step, and how many answers of the other engine are wrong by it."""
        peer = peer or self.shape.peer
        other = other or ("TRITON_MLA" if peer.endswith("_MLA") else "TRITON_ATTN")
        # Work that is divided rounds partial results, too. Where only one backend serves a model, other chunks of the prompts make
        # other roundings.
        if self._division:
            other, more = peer, self._division
        else:
            more = {"max_num_batched_tokens": 256} if other == peer else {}

        def answers(backend, what, **more):
            with self.engine(backend, " ".join([what, *options]), **options, **more) as engine:
                return engine.generate(prompts=prompts, tokens=TOKENS, logprobs=5)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            second = pool.submit(answers, other, "other", **more)
            first = answers(peer, "peer")
            noise = noise_of(first, second.result())
        if noise == 0:
            raise RuntimeError(f"{peer} and {other} agree to the last bit, so they do not tell bf16's error")
        return first, FACTOR * noise, wrong_of(first, second.result(), FACTOR * noise)

    def _reference_of_prompts(self):
        """Of the prompts of tokens(), prefix() and planted(), made once."""
        with self._lock:
            if self._reference is None:
                self._reference = self.reference(prompts_of())
            return self._reference

    def tokens(self):
        yield self._compared("tokens", prompts_of(), *self._reference_of_prompts())

    def prefix(self):
        yield self._compared("prefix", prompts_of(), *self._reference_of_prompts(), cached=True)

    def compiled(self):
        default = {"compilation_config": {"cudagraph_capture_sizes": COMMON["compilation_config"]["cudagraph_capture_sizes"]}}
        yield self._compared("compiled", prompts_of(), *self.reference(prompts_of(), **default), graphs="FULL_AND_PIECEWISE",
                             **default)

    def planted(self):
        for error in (error for error, model in PLANTED_MODELS.items() if model == self.model):
            row = self._compared(f"planted: {error}", prompts_of(), *self._reference_of_prompts(), planted=error, enforce_eager=True)
            yield {**row, "problem": None if row["wrong"] else "the planted error was not found"}

    def fp8(self):
        stored = {"kv_cache_dtype": "fp8"}
        reference = self.reference(prompts_of(), "TRITON_ATTN", "TRITON_ATTN", exact_queries=True, **stored)
        yield self._compared("fp8", prompts_of(), *reference, **stored)

    def ngram(self):
        prompts = prompts_of(vocabulary=self.shape.sizes["vocab_size"])
        yield self._compared("ngram", prompts, *self.reference(prompts), speculative_config=NGRAM, disable_log_stats=False)

    def _compared(self, what, prompts, reference, bound, others_wrong, cached=False,
                  graphs=COMMON["compilation_config"]["cudagraph_mode"], **more):
        with self.ours(what, **more) as engine:
            start = engine.wait()
            if cached:
                engine.generate(prompts=[prompt[:(len(prompt) + 1) // 2] for prompt in prompts[1::2]], tokens=1)
            decided, total, wrong = compare(engine, prompts, reference, bound)
            drafts = engine.metrics(prefix="vllm:spec_decode") if "speculative_config" in more else None
        # vLLM captures MLA's decodes alone, and an engine with planted errors nothing.
        asked = None if "planted" in more or self.shape.peer.endswith("_MLA") else graphs
        row = {"check": what, "model": self.model, "decided": decided, "steps": total, "wrong": len(wrong), "graphs": asked,
               "first_wrong": wrong[:3], "bound": bound, "others_wrong": others_wrong, "start": start, "drafts": drafts}
        says = f"{decided} of {total} steps decided by {bound:.3f}, {len(wrong)} wrong, {others_wrong} of the other peer's; "
        return {**row, "problem": problem_of(row), "says": says + (f"{drafts}; " if drafts else "")}

    def invariance(self):
        needle = prompts_of()[NEEDLE]

        def differences(what, variable):
            with self.ours(what, {"VLLM_BATCH_INVARIANT": variable}, enable_prefix_caching=False) as engine:
                alone = engine.generate(prompts=[needle], tokens=TOKENS)[0]
                of_prefill = engine.score(prompts=[needle + alone["tokens"]])[0][-TOKENS:]
                of_decode = [step[0][1] for step in alone["best"]]
                return (differing_batches(engine, needle, alone, BATCHES),
                        sum(one != two for one, two in zip(of_prefill, of_decode)))

        batches, steps = differences("invariant", "1")
        others, other_steps = differences("variant", "0")
        problem = (f"batches of {batches} have other bits" if batches else
                   f"{steps} of {TOKENS} logprobs of decodes are not the prefill's" if steps else
                   None if others else "without VLLM_BATCH_INVARIANT no batch differs, so the check tells nothing")
        yield {"check": "invariance", "model": self.model, "batches": list(BATCHES), "different": batches,
               "steps_unlike_prefill": steps, "without": {"different": others, "steps_unlike_prefill": other_steps},
               "problem": problem, "says": f"batches of {BATCHES}; without the variable {others} differ; "}

    def start(self):
        with tempfile.TemporaryDirectory(prefix="attnsmith-caches-") as caches:
            cold, made = pathlib.Path(caches) / "cold", pathlib.Path(caches) / "made"

            def started(what, cache, on_miss):
                environment = {"ATTNSMITH_CACHE_DIR": str(cache), "ATTNSMITH_ON_MISS": on_miss}
                with self._engine(self._name, what, environment) as engine:
                    start = engine.wait()
                    engine.generate(prompts=prompts_of(), tokens=4)
                    return start

            begin = time.perf_counter()
            self._command("prewarm", "--model", str(self.folder), "--engine", "vllm", "--page-size", "16", "--cache", str(made))
            prewarm = time.perf_counter() - begin
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                starts = list(pool.map(lambda what: started(what, cold, "compile"), ("cold one", "cold two")))
            warm = started("prewarmed", made, "error")
            keys = {name: {entry["key"] for entry in json.loads(self._command("cache", "ls", "--json", "--cache", str(path)))["entries"]}
                    for name, path in (("cold", cold), ("made", made))}
        cold_s, warm_s = ([one["attnsmith"]["import_s"] + one["attnsmith"]["prepare_s"] for one in those] for those in (starts, [warm]))
        yield {"check": "start", "model": self.model, "prewarm_s": prewarm, "cold_s": cold_s, "warm_s": warm_s[0],
               "keys": len(keys["made"]), "only_in_engine": sorted(keys["cold"] - keys["made"]),
               "only_in_prewarm": sorted(keys["made"] - keys["cold"]),
               "problem": None if keys["cold"] == keys["made"] else "prewarm and the engine have other keys",
               "says": f"{len(keys['made'])} keys; in attnsmith {', '.join(f'{one:.2f}' for one in cold_s)} s cold, {warm_s[0]:.2f} s "
                       f"warm; prewarm {prewarm:.1f} s; "}

    @staticmethod
    def _command(*words):
        program = os.environ.get("ATTNSMITH_BIN", "attnsmith")
        try:
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        except OSError as error:
            raise Failed(f"{program} cannot be run ({error.strerror}): set ATTNSMITH_BIN to the command attnsmith") from error
        if done.returncode:
            raise Failed(f"attnsmith {words[0]}: {done.stderr.strip()}")
        return done.stdout


def problem_of(row):
    if row["wrong"]:
        return f"{row['wrong']} prompts have a wrong token"
    if row["decided"] < LEAST_DECIDED * row["steps"]:
        return "fewer than half of the steps are decided"
    if not any("Attnsmith" in name for name in row["start"]["backends"]):
        return "the engine did not use attnsmith"
    if row["graphs"] not in (None, row["start"]["cudagraph_mode"]):
        return f"the engine took graphs of mode {row['start']['cudagraph_mode']}, not {row['graphs']}"
    if row["drafts"] is not None and not row["drafts"].get("vllm:spec_decode_num_accepted_tokens"):
        return "no draft was accepted"
    return None


def shown(row):
    first = f"; the first: {json.dumps(row['first_wrong'][0])}" if row.get("first_wrong") else ""
    return f"{row['model']}, {row['check']}: {row.get('says', '')}{row['problem'] or 'as it should be'}{first}"


#: The models of each check; of None, all but FEW_TOKENS. A check that patches the engine's process cannot be made of several.
FEW_TOKENS = "few-tokens"
CHECKS = {"tokens": None, "prefix": {"llama-3.1", "gemma-3", "deepseek-v2-lite", "one-kv-head"},
          "compiled": {"llama-3.1", "gemma-3", "deepseek-v2-lite"}, "planted": set(PLANTED_MODELS.values()), "ngram": {FEW_TOKENS},
          "fp8": {"llama-3.1", "gemma-3"}, "invariance": {"llama-3.1", "gemma-3"},
          "start": {"llama-3.1", "gemma-3", "deepseek-v2-lite"}}
OF_ONE_PROCESS = {"planted", "start"}
#: Models whose context vLLM can divide: each KV head is on several GPUs, and there are no windows and sinks.
CONTEXT_PARALLEL = {"one-kv-head", "deepseek-v2-lite"}


def chosen(options):
    """[(model, check)] of the options. Raises Failed if there are none."""
    models = matching(options.models, seeded_models.SHAPES, "--models")
    checks = matching(options.checks, CHECKS, "--checks")
    several, divided = options.tensor_parallel > 1, options.context_parallel > 1
    found = [(model, check) for model in models for check in checks
             if (model != FEW_TOKENS if CHECKS[check] is None else model in CHECKS[check])
             and not (several and (check in OF_ONE_PROCESS or seeded_models.SHAPES[model].sinks))
             and (model in CONTEXT_PARALLEL or not divided)]
    if not found:
        raise Failed(f"--checks {options.checks!r} are not made with --models {options.models!r}"
                     + f" and --tensor-parallel {options.tensor_parallel}" * several
                     + f" and --context-parallel {options.context_parallel}" * divided)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", metavar="REGEX")
    parser.add_argument("--checks", default="", metavar="REGEX")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N")
    parser.add_argument("--tensor-parallel", type=positive, default=1, metavar="N")
    parser.add_argument("--context-parallel", type=positive, default=1, metavar="N")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--logs", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args(arguments)
    wanted = chosen(options)
    options.logs = folder_of_logs(options.logs, options.tensor_parallel)
    rows, writing = [], threading.Lock()

    def write():
        if options.json:
            options.json.write_text(json.dumps({"schema": "attnsmith.vllm-check/3", "rows": rows}, indent=1))

    def run(check, name):
        try:
            for row in getattr(check, name)():
                report(row)
        except Exception as error:
            report({"check": name, "model": check.model, "problem": f"{type(error).__name__}: {error}"})

    def report(row):
        with writing:
            print(shown(row), flush=True)
            rows.append(row)
            write()

    write()
    with tempfile.TemporaryDirectory(prefix="attnsmith-vllm-") as folder:
        slots, made = threading.Semaphore(options.jobs), {}
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            running = []
            for model, name in wanted:
                if model not in made:
                    made[model] = Check(model, seeded_models.write(model, pathlib.Path(folder) / model), options, slots)
                if name != "start":
                    running.append(pool.submit(run, made[model], name))
            for one in running:
                one.result()
        for model in (model for model, name in wanted if name == "start"):
            run(made[model], "start")
    if any(row["problem"] for row in rows):
        print(f"logs of the engines: {options.logs}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    run_tool(main)
