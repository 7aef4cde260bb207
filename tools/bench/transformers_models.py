#!/usr/bin/env python3
"""A model of transformers by attnsmith, beside torch's SDPA and other libraries:

    transformers_models.py tokens [--model NAME ...] [--batch N ...]      tokens per second of generation, each way to generate
    transformers_models.py first-token [--model NAME]                     from the start of a process to its first token

Weights are random. "tokens" times greedy decoding after a prompt by each implementation in turn, so that a disturbance
meets all of them, and prints the median of the rounds and its ratio over sdpa. "first-token" starts a process for each
implementation, twice, where FlashInfer's first one finds nothing built; attnsmith's with an empty cache of kernels, with
that of the first run, and with one that was made from a record alone, where nothing may be compiled. --json FILE keeps all
numbers. An implementation that this machine lacks is named and left out. ATTNSMITH_LIBRARY, or an installed wheel, is
what is measured.
"""

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": 1024}),
    "gemma2": ("Gemma2Config", {"sliding_window": 1024, "head_dim": 128, "query_pre_attn_scalar": 128}),
}
SIZE = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 16384,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
FLASH3 = "flash_attn_interface"  # the module of FlashAttention-3's wheels


def flash_attention_3(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, **words):
    """FlashAttention-3 for rows without padding, since transformers asks for a distribution of another name."""
    attend = importlib.import_module(FLASH3).flash_attn_func
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    o = attend(*(tensor.transpose(1, 2) for tensor in (query, key, value)), softmax_scale=scaling, causal=True,
               window_size=window, softcap=softcap or 0.0)
    return (o[0] if isinstance(o, tuple) else o), None


def flashinfer(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, **words):
    """FlashInfer for a batch of one."""
    attend = importlib.import_module("flashinfer").single_prefill_with_kv_cache
    o = attend(*(tensor[0].transpose(0, 1) for tensor in (query, key, value)), causal=True, sm_scale=scaling,
               window_left=-1 if sliding_window is None else sliding_window - 1, logits_soft_cap=softcap)
    return o[None], None


def missing(name):
    """Why this implementation cannot be measured here, or None."""
    module = {"flash-attention-3": FLASH3, "flashinfer": "flashinfer", "attnsmith-flash3": "kernels"}.get(name)
    return None if module is None or importlib.util.find_spec(module) else f"there is no module {module}"


def switch_on(name):
    """Gives the attn_implementation of that name."""
    if name == "sdpa":
        return name
    import transformers
    if name.startswith("attnsmith"):
        from launches import import_attnsmith
        import_attnsmith()
        import attnsmith.transformers
        attnsmith.transformers.register(strict=True)
        return attnsmith.transformers.FLASH3 if name == "attnsmith-flash3" else "attnsmith"
    adapter = {"flash-attention-3": flash_attention_3, "flashinfer": flashinfer}[name]
    registered = name.replace("flash", "f")  # transformers looks for a kernel of its own by any name with that word
    transformers.AttentionInterface.register(registered, adapter)
    transformers.AttentionMaskInterface.register(registered, lambda *arguments, **words: None)
    return registered


def model_of(name, layers=SIZE["num_hidden_layers"]):
    import torch
    import transformers
    config_class, own = MODELS[name]
    config = getattr(transformers, config_class)(**{**SIZE, **own, "num_hidden_layers": layers})
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def generation(model, way, prompts, mask, tokens):
    """What generates once, and gives the seconds it took. mask [batch, tokens]: 0 in front of shorter prompts."""
    import torch
    import transformers

    def generate():
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        torch.cuda.synchronize()
        start = time.perf_counter()
        if way == "batching":
            # The manager is kept for the next round, and its cache is small enough that SDPA's masks of all of it fit beside.
            model.generate_batch([row[seen].tolist() for row, seen in zip(prompts, mask.bool())], progress_bar=False,
                                 generation_config=transformers.GenerationConfig(**options), persistent_manager=True,
                                 continuous_batching_config=transformers.ContinuousBatchingConfig(use_cuda_graph=True, max_memory_percent=0.2))
        else:
            model.generate(prompts, attention_mask=mask, **options,
                           **({"cache_implementation": "static"} if way == "static" else {}))
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return generate


def tokens_per_second(options):
    import torch
    results = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prompts of {options.prompt}, {options.tokens} new tokens")
    for name in options.model:
        model = model_of(name)
        for way in options.way:
            names = ["sdpa", "attnsmith"] + {"batching": ["attnsmith-flash3"], "dynamic": ["flash-attention-3"]}.get(way, [])
            for batch in options.batch:
                prompts = torch.randint(1, SIZE["vocab_size"], (batch, options.prompt), device="cuda")
                mask = torch.ones_like(prompts)
                if options.padded:
                    for row in range(batch):
                        mask[row, :row * options.prompt // (2 * batch)] = 0
                runs, ready = {}, {}
                for implementation in names:
                    why = missing(implementation)
                    if options.padded and implementation == "flash-attention-3":
                        why = "its adapter here takes no padding"
                    if why:
                        print(f"{name} {way} x{batch}: {implementation} is left out: {why}")
                        continue
                    ready[implementation] = switch_on(implementation)
                    runs[implementation] = []
                turns = [(implementation, turn) for turn in range(options.rounds + 1) for implementation in ready]
                if way == "batching":  # each warms up a manager, whose rounds follow
                    turns.sort(key=lambda one: names.index(one[0]))
                for implementation, turn in turns:
                    if not turn and way == "batching":
                        model.destroy_cached_continuous_batching_manager()
                    model.set_attn_implementation(ready[implementation])
                    seconds = generation(model, way, prompts, mask, options.tokens)()
                    if turn:  # the first compiles
                        runs[implementation].append(batch * options.tokens / seconds)
                model.destroy_cached_continuous_batching_manager()
                for implementation, rates in runs.items():
                    rate = statistics.median(rates)
                    ratio = rate / statistics.median(runs["sdpa"])
                    results.append({"model": name, "way": way, "batch": batch, "implementation": implementation,
                                    "tokens_per_second": rates, "over_sdpa": ratio})
                    print(f"{name} {way} x{batch}: {implementation:18s} {rate:9.1f} tokens/s  {ratio:.2f} of sdpa", flush=True)
    return results


CHILD = "one-first-token"


def one_first_token(options):
    """In a process of its own. Prints when each step was done, in seconds since the parent started it."""
    started = options.since
    steps = {"python": time.time() - started}
    import torch
    import transformers  # noqa: F401
    steps["torch and transformers"] = time.time() - started
    model = model_of(options.model[0], layers=2)
    prompt = torch.randint(1, SIZE["vocab_size"], (1, options.prompt), device="cuda")
    torch.nn.functional.linear(prompt.float(), prompt.float())  # what cuBLAS sets up
    torch.cuda.synchronize()
    steps["model"] = time.time() - started
    model.set_attn_implementation(switch_on(options.implementation))
    steps["switched on"] = time.time() - started
    with torch.no_grad():
        model(prompt).logits[:, -1].argmax(-1).item()
    steps["first token"] = time.time() - started
    start = time.time()
    with torch.no_grad():
        model(prompt).logits[:, -1].argmax(-1).item()
    print(json.dumps({**steps, "a second one": time.time() - start}))


def counters(attnsmith, folder):
    return attnsmith.Runtime(cache_dirs=folder).cache("stat")["counters"]


def first_token(options):
    results = []
    with tempfile.TemporaryDirectory() as folder:
        staging, fleet, record, built = (pathlib.Path(folder) / name for name in ("staging", "fleet", "record.jsonl", "built"))

        def run(label, implementation, **environment):
            command = [sys.executable, "-B", __file__, CHILD, "--implementation", implementation, "--model", options.model[0],
                       "--prompt", str(options.prompt), "--since"]
            done = subprocess.run([*command, repr(time.time())], env={**os.environ, **environment}, capture_output=True, text=True,
                                  check=False)
            if done.returncode:
                print(f"{label}: failed\n{done.stderr[-2000:]}")
                return
            steps = json.loads(done.stdout.splitlines()[-1])
            results.append({"label": label, "implementation": implementation, **steps})
            took = steps["first token"] - steps["switched on"]
            print(f"{label:44s} first token after {steps['first token']:6.2f} s, of which {took:6.3f} s with attention switched on; "
                  f"a second one {steps['a second one'] * 1e3:.1f} ms", flush=True)

        for implementation in ("sdpa", "flash-attention-3", "flashinfer"):
            if missing(implementation):
                print(f"{implementation} is left out: {missing(implementation)}")
                continue
            for label in ("first run", "second run"):
                run(f"{implementation}, {label}", implementation, FLASHINFER_WORKSPACE_BASE=str(built))
        cache = {"ATTNSMITH_CACHE_DIR": str(staging)}
        run("attnsmith, empty cache", "attnsmith", **cache, ATTNSMITH_RECORD=str(record))
        run("attnsmith, warm cache", "attnsmith", **cache)
        from launches import import_attnsmith
        attnsmith = import_attnsmith()
        made = attnsmith.Runtime(cache_dirs=fleet).prewarm(recorded=record)["summary"]
        before = counters(attnsmith, fleet)
        run(f"attnsmith, {made['compiled']} kernels by prewarm --recorded, on_miss = error", "attnsmith",
            ATTNSMITH_CACHE_DIR=str(fleet), ATTNSMITH_ON_MISS="error")
        after = counters(attnsmith, fleet)
        print("of that run: " + ", ".join(f"{after[name] - before[name]} {name}" for name in ("hits", "misses", "compiles")))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tokens", "first-token", CHILD))
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=["llama"])
    parser.add_argument("--way", nargs="+", choices=("dynamic", "static", "batching"), default=["dynamic", "static", "batching"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--padded", action="store_true", help="prompts of half as many tokens up to all, padded on the left")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--implementation", help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    run = {"tokens": tokens_per_second, "first-token": first_token, CHILD: one_first_token}[options.what]
    results = run(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
