"""An engine of vLLM in a process of its own, which another process drives by lines of JSON: see Engine in vllm_engines.py.

    vllm_worker.py '{"model": FOLDER, "backend": "FLASH_ATTN", ...}'

Commands on standard input, one a line, and answers on standard output: {"ok": ...} or {"error": ...}. What vLLM itself prints
goes to standard error.
"""

import functools
import json
import os
import re
import sys
import time
import traceback

ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1",
               "VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
LONG = 4000  # new tokens of a request that is ended by finish()


class Worker:
    def __init__(self, options):
        import torch
        self.torch = torch
        sinks_std = options.pop("sinks_std", None)
        if sinks_std is not None:
            add_sinks(torch, sinks_std)
        if options.pop("exact_queries", False):
            keep_queries()
        start = time.perf_counter()
        from vllm import LLM, SamplingParams
        imported = time.perf_counter()
        import attnsmith_vllm
        attnsmith_vllm.register()  # where attnsmith is on PYTHONPATH and not installed, it has no entry point
        backend, planted = options.pop("backend"), options.pop("planted", None)
        self.attnsmith = time_attnsmith() if backend in ("ATTNSMITH", "CUSTOM") else None
        if planted is not None:
            plant(planted)
        self.sampling = SamplingParams
        self.llm = LLM(**{"skip_tokenizer_init": True, "attention_backend": backend, "seed": 0, **options})
        self.engine = self.llm.llm_engine
        self.started = {"import_s": imported - start, "engine_s": time.perf_counter() - imported}
        self.count, self.running = 0, set()

    def describe(self):
        """The seconds of the start, of it those in attnsmith, the graph mode that the engine settled on, and its attention
        backends."""
        config = self.engine.vllm_config
        layers = config.compilation_config.static_forward_context
        backends = sorted({layer.get_attn_backend().full_cls_name()[1] for layer in layers.values()
                           if hasattr(layer, "get_attn_backend")})
        if not layers:  # they are in the processes of several GPUs
            backends = [config.attention_config.backend.get_path()]
        return {**self.started, "cudagraph_mode": str(config.compilation_config.cudagraph_mode), "backends": backends,
                "block_size": config.cache_config.block_size, "attnsmith": self.attnsmith}

    def pin(self, cores):
        """Keeps all threads of this process on these cores."""
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)

    def generate(self, prompts, tokens, logprobs=2):
        """Greedy tokens of each prompt, and for each token the largest logprobs, as [[token, logprob], ...]."""
        results = []
        for output in self._generate(prompts, tokens, logprobs=logprobs):
            best = [sorted(((token, entry.logprob) for token, entry in step.items()), key=lambda pair: -pair[1])
                    for step in output.outputs[0].logprobs]
            results.append({"tokens": list(output.outputs[0].token_ids), "best": best})
        return results

    def score(self, prompts):
        """The logprob of each token of each prompt but the first, as one prefill computes them."""
        return [[entry[token].logprob for token, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:])]
                for output in self._generate(prompts, 1, prompt_logprobs=0)]

    def metrics(self, prefix):
        """The engine's counters whose names begin so, where it was started with disable_log_stats=False."""
        return {metric.name: metric.value for metric in self.llm.get_metrics()
                if metric.name.startswith(prefix) and hasattr(metric, "value")}

    def fill(self, batch, context):
        """Starts `batch` requests with `context` tokens each. They stay until finish(), so that both engines can take turns in
        their decode steps."""
        waiting = {self._add(self._prompt(context, seed), LONG) for seed in range(batch)}
        while waiting:
            waiting -= {output.request_id for output in self.engine.step() if output.outputs[0].token_ids}

    def decode(self, steps):
        """Seconds of a decode step, after fill(): of `steps` in a row, since the host runs ahead of the device."""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.engine.step()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    def finish(self):
        """Ends all requests."""
        self.engine.abort_request(sorted(self.running))
        self.running.clear()
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def prefill(self, tokens, repeats):
        """Seconds until the first token of one prompt, the least of `repeats`."""
        times = []
        for seed in range(repeats):
            self._add(self._prompt(tokens, 1000 + seed), 1)
            start = time.perf_counter()
            while self.engine.has_unfinished_requests():
                self.engine.step()
            self.torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        self.running.clear()
        return min(times)

    def mixed(self, requests, tokens, longest, rate):
        """Seconds for `requests` of 1 to `longest` prompt tokens and `tokens` new ones; `rate` new requests a step."""
        pending = [self._prompt(1 + (7919 * seed) % longest, seed) for seed in range(requests)]
        start = time.perf_counter()
        while pending or self.engine.has_unfinished_requests():
            for prompt in pending[:rate]:
                self._add(prompt, tokens)
            del pending[:rate]
            self.engine.step()
        self.torch.cuda.synchronize()
        self.running.clear()
        return time.perf_counter() - start

    def profile(self, method, parts, **words):
        """Microseconds in which kernels run while another method does its work, as the profiler of torch sees them. parts: {name:
        regular expression of kernels}; kernels that overlap count once."""
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            getattr(self, method)(**words)
        events = [event for event in profiler.events() if event.device_type == self.torch.autograd.DeviceType.CUDA]
        return {part: covered((event.time_range.start, event.time_range.end) for event in events
                              if re.search(pattern, event.name)) for part, pattern in parts.items()}

    def metadata(self, steps):
        """Microseconds of the host for the attention's metadata of a decode step, after fill()."""
        runner = self.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        builders = [group.get_metadata_builder(0) for groups in runner.attn_groups for group in groups]
        spent = []
        for builder in builders:
            builder.build = timed(builder.build, spent.append)
        try:
            self.decode(steps)
        finally:
            for builder in builders:
                del builder.build
        return 1e6 * sum(spent) / steps

    def _generate(self, prompts, tokens, **words):
        params = self.sampling(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False, **words)
        return self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)

    def _prompt(self, length, seed):
        vocabulary = self.engine.vllm_config.model_config.get_vocab_size()
        generator = self.torch.Generator().manual_seed(seed)
        return self.torch.randint(0, vocabulary, (length,), generator=generator, device="cpu").tolist()

    def _add(self, prompt, tokens):
        self.count += 1
        params = self.sampling(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self.count), {"prompt_token_ids": prompt}, params)
        self.running.add(str(self.count))
        return str(self.count)


def covered(ranges):
    """The length of the union of ranges, (start, end)."""
    total, reached = 0, float("-inf")
    for start, end in sorted(ranges):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def timed(function, add):
    """The function, each call of which adds its seconds."""
    @functools.wraps(function)
    def call(*arguments, **words):
        begin = time.perf_counter()
        try:
            return function(*arguments, **words)
        finally:
            add(time.perf_counter() - begin)

    return call


def time_attnsmith():
    """{"import_s", "prepare_s"}: what an engine's start takes within attnsmith. The last is of the engine that starts next in this
    process."""
    import vllm.model_executor.layers.attention.mla_attention  # noqa: F401  # which the backend imports, too
    import vllm.v1.attention.backends.mla.prefill.registry  # noqa: F401
    start = time.perf_counter()
    from attnsmith.vllm import _dense, _layers, _mla  # noqa: F401
    times = {"import_s": time.perf_counter() - start, "prepare_s": 0.0}

    def add(seconds):
        times["prepare_s"] += seconds

    # What compiles during the engine's own work counts for what the engine waits for.
    _layers.begin, _layers.prepared = timed(_layers.begin, add), timed(_layers.prepared, add)
    return times


def add_sinks(torch, std):
    """Llama's attention with sinks from a seed: vLLM has no dense model with them."""
    import vllm.model_executor.models.llama as llama
    plain = llama.Attention

    def attention(heads, *arguments, **words):
        generator = torch.Generator().manual_seed(heads)
        sinks = std * torch.randn(heads, generator=generator, device="cpu", dtype=torch.float32)
        return plain(heads, *arguments, sinks=torch.nn.Parameter(sinks.to("cuda", torch.bfloat16), False), **words)

    llama.Attention = attention


def keep_queries():
    """TRITON_ATTN rounds queries to fp8 if the cache is fp8. Here it does not."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl
    plain = TritonAttentionImpl.__init__

    @functools.wraps(plain)
    def exact(self, *arguments, **words):
        plain(self, *arguments, **words)
        self.supports_quant_query_input = False

    TritonAttentionImpl.__init__ = exact


# ---- errors that a check has to find


def _lost_page(impl, words):
    table = words["attn_metadata"].block_table.clone()
    table[:, 1:2] = table[:, :1]
    words["attn_metadata"].block_table = table


def _wider_window(impl, words):
    if impl.sliding_window is not None and not hasattr(impl, "planted"):
        impl.sliding_window += 1
        impl.planted = True


def _swapped_heads(impl, words):
    order = list(range(impl.num_kv_heads))
    order[:2] = 1, 0
    words["kv_cache"] = words["kv_cache"][:, order]


PLANTED = {"lost page": _lost_page, "wider window": _wider_window, "swapped KV heads": _swapped_heads}


def plant(name):
    import attnsmith.vllm._dense as dense
    forward, change = dense.AttnsmithImpl.forward, PLANTED[name]

    @functools.wraps(forward)
    def planted(self, layer, query, key, value, kv_cache, attn_metadata, output, **words):
        words.update(kv_cache=kv_cache, attn_metadata=attn_metadata)
        if attn_metadata is not None:
            change(self, words)
        return forward(self, layer, query, key, value, output=output, **words)

    dense.AttnsmithImpl.forward = planted


def main():
    os.environ.update(ENVIRONMENT)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(command):
        """Whether it was carried out."""
        try:
            document = {"ok": command()}
        except Exception as error:
            traceback.print_exc()
            document = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(document) + "\n")
        answers.flush()
        return "ok" in document

    workers = []

    def start():
        workers.append(Worker(json.loads(sys.argv[1])))
        return workers[0].describe()

    if not answer(start):
        return 1
    for line in sys.stdin:
        command = json.loads(line)
        answer(lambda: getattr(workers[0], command["do"])(**command["words"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
