"""What an engine of vLLM prepares when it starts, on stand-ins, with fake NVRTC and driver."""

import contextlib
import dataclasses
import gc
import json
import os
import subprocess
import threading
import types
import unittest
import unittest.mock
import warnings
import weakref

from support import COMMAND, FAKE_CUDA, MODELS, PythonTest, attnsmith
from vllm_release import NEWEST, config_of, release

try:
    import torch
except ImportError:
    torch = None
else:
    import vllm_cases

class Recorded(Exception):
    """Raised where a call would prepare a kernel."""


@contextlib.contextmanager
def recording():
    """The requests that calls make of CPU tensors, as if these were on a GPU. Calls raise Recorded."""
    from attnsmith._calls import dispatch
    from attnsmith._tensors import frameworks
    words = []

    def prepare(self, key, request, index):
        words.append(request)
        raise Recorded

    def view(self, tensor, name, order=None):
        return tensor.data_ptr(), tensor.shape, tensor.stride(), self.kinds[tensor.dtype], 2

    with contextlib.ExitStack() as stack:
        for owner, name, value in ((dispatch.Dispatch, "prepare", prepare), (frameworks.Torch, "view", view),
                                   (frameworks.Torch, "index", lambda *_: 0), (frameworks.Torch, "stream", lambda *_: 0),
                                   (frameworks.Torch, "scope", lambda *_: None), (frameworks.Torch, "layouts", lambda *_: None)):
            stack.enter_context(unittest.mock.patch.object(owner, name, value))
        yield words


def kernels_of(requests):
    """The keys of all kernels that these may need on sm_90."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that the cache does not have them
        report = attnsmith.default_runtime().prewarm(requests, sm=90, compile=False)
    return {kernel["key"] for kernel in report["kernels"]}


_SIZES = ({}, {"batch": 8, "q_len": 4096, "kv_len": 8192}, {"batch": 64, "q_len": 1, "kv_len": 32768},
          {"batch": 3, "q_len": 40, "kv_len": 500})


def planned(request):
    """The keys of the kernels of one call, and of such calls of other sizes."""
    keys = set()
    for sizes in _SIZES:
        plan = attnsmith.default_runtime().plan(sm=90, **{**request, **sizes})
        keys.update(kernel["cache"]["key"] for kernel in plan["kernels"])
    return keys


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Start(unittest.TestCase):
    """What an engine prepares when it starts is all that its calls need."""

    def calls_of(self, backend, case):
        with recording() as words, contextlib.suppress(Recorded):
            impl, layer = vllm_cases.impl_of(backend, case, "cpu"), vllm_cases.layer_of(case, "cpu")
            scale = 4 if impl.storage.is_per_token else 0
            cache, table = vllm_cases.cache_of(case, 2 * (case.head_size + scale), "cpu")
            new = torch.zeros(21, case.kv_heads, case.head_size, dtype=case.dtype)
            slots = torch.arange(21)
            with contextlib.suppress(Recorded):
                impl.do_kv_cache_update(layer, new, new, cache, slots)
            query = torch.zeros(21, case.heads, case.head_size, dtype=case.dtype)
            step = vllm_cases.builder_of(backend).build(0, vllm_cases.common_of(case, table, slots))
            impl.forward(layer, query, new, new, cache, step, query.clone())
        return impl, words

    def test_calls_need_no_other_kernel(self):
        for case in vllm_cases.DENSE:
            for queries, contexts in (((1,) * 21, (30,) * 21), ((21,), (1000,)), ((3, 1, 17), (5, 30, 0))):
                case = dataclasses.replace(case, queries=queries, contexts=contexts)
                with self.subTest(case.name, queries=queries), release(NEWEST) as (backend, _):
                    impl, words = self.calls_of(backend, case)
                    config = config_of(dtype=case.dtype)
                    config.attention_config.use_non_causal = not case.causal
                    prepared = [request for _, request in impl.requests(case.block_size, config)]
                    self.assertEqual(len(words), 1 if case.attn_type == "encoder_only" else 2)
                    known = kernels_of(prepared)
                    for request in words:
                        self.assertLessEqual(planned(request), known, request)

    def test_calls_of_latent_layers_need_no_other_kernel(self):
        for dtype in ("auto", "fp8"):
            with self.subTest(dtype), release(NEWEST, config_of(use_mla=True)) as (backend, _):
                impl = vllm_cases.latent_impl(backend, dtype)
                known = kernels_of([words for _, words in impl.requests(16, config_of())])
                with recording() as words:
                    vllm_cases.latent_calls(backend, impl, Recorded)
                self.assertEqual([request.get("op", "attention") for request in words], ["append", "mla", "attention", "attention"])
                for request in words:
                    self.assertLessEqual(planned(request), known, request)

    def test_layers_of_one_kind_are_prepared_once(self):
        with release(NEWEST) as (backend, _):
            from attnsmith.vllm import _layers
            config = config_of()
            for number in range(3):
                impl = vllm_cases.impl_of(backend, dataclasses.replace(vllm_cases.DENSE[0], window=9 if number else None), "cpu")
                config.compilation_config.static_forward_context[f"layer {number}"] = types.SimpleNamespace(impl=impl)
            config.compilation_config.static_forward_context["another"] = types.SimpleNamespace(impl=object())
            layers = ["layer 0", "layer 1", "layer 2", "another", "gone"]
            prepare = unittest.mock.Mock()
            with unittest.mock.patch.object(_layers, "default_runtime", lambda: types.SimpleNamespace(prepare_set=prepare)):
                _layers.prepared(_layers.requests_of(config, layers, 16), torch.device("cuda", 1))
        asked = [call.kwargs for call in prepare.call_args_list]
        self.assertEqual({words["device"] for words in asked}, {1})
        self.assertEqual(sorted((words["op"], words.get("window_left")) for words in asked if words["op"] == "append"),
                         [("append", None)])
        self.assertEqual(sorted(words.get("window_left", -1) for words in asked if words["op"] == "attention"), [-1, 8])

    def test_an_unsupported_layer_is_named(self):
        with release(NEWEST):
            from attnsmith.vllm import _layers

            def refuse(**words):
                raise attnsmith.Unsupported("no kernel")

            with unittest.mock.patch.object(_layers, "default_runtime", lambda: types.SimpleNamespace(prepare_set=refuse)):
                with self.assertRaisesRegex(attnsmith.Unsupported, "model.layers.3: attention: no kernel"):
                    _layers.prepared([("model.layers.3: attention", {"op": "attention"})], torch.device("cuda", 0))

    @contextlib.contextmanager
    def engine(self, prepare, config):
        """An engine whose process has chosen a GPU. Gives its backend and _layers."""
        with release(NEWEST, config) as (backend, _), contextlib.ExitStack() as stack:
            from attnsmith.vllm import _layers
            runtime = types.SimpleNamespace(prepare_set=prepare)
            for place, name, value in ((_layers, "default_runtime", lambda: runtime), (torch.cuda, "is_initialized", lambda: True),
                                       (torch.cuda, "current_device", lambda: 1)):
                stack.enter_context(unittest.mock.patch.object(place, name, value))
            stack.callback(self.wait_for_kernels)
            yield backend, _layers

    def test_kernels_compile_while_weights_load(self):
        """They begin when a layer is made, once for all equal layers, and stay loaded as long as the layers live."""
        class Kernels:
            pass

        made = []

        def prepare(**words):
            kernels = Kernels()
            made.append((words["device"], words["op"], words.get("page_size"), weakref.ref(kernels)))
            return kernels

        for block_size, page_size in ((32, 32), (None, 16)):
            made.clear()
            with self.subTest(block_size), self.engine(prepare, config_of(block_size=block_size)) as (backend, _):
                impls = [vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu") for _ in range(3)]
                self.wait_for_kernels()
                self.assertEqual(sorted(one[:3] for one in made), [(1, "append", page_size), (1, "attention", page_size)])
                gc.collect()
                self.assertTrue(all(kernels() is not None for *_, kernels in made))
                impls.clear()
                gc.collect()
                self.assertFalse(any(kernels() is not None for *_, kernels in made))

    @staticmethod
    def wait_for_kernels():
        for thread in threading.enumerate():
            if thread.name == "attnsmith: kernels":
                thread.join()

    def test_what_begins_are_the_requests_of_the_builder(self):
        prepare, config = unittest.mock.Mock(), config_of(block_size=16)
        with self.engine(prepare, config) as (backend, _layers):
            for name, case in enumerate(vllm_cases.DENSE):
                if case.dtype == torch.bfloat16:
                    impl = vllm_cases.impl_of(backend, case, "cpu")
                    config.compilation_config.static_forward_context[name] = types.SimpleNamespace(impl=impl)
            self.wait_for_kernels()
            begun = [call.kwargs for call in prepare.call_args_list]
            prepare.reset_mock()
            self.assertGreater(len(begun), 10)
            _layers.prepared(_layers.requests_of(config, config.compilation_config.static_forward_context, 16), torch.device("cuda"))
        for call in prepare.call_args_list:
            self.assertIn(call.kwargs, begun)
        self.assertEqual(prepare.call_count, len(begun))

    def test_what_cannot_be_prepared_is_told_by_the_builder(self):
        config = config_of(block_size=16)
        refused = unittest.mock.Mock(side_effect=attnsmith.Unsupported("no kernel"))
        with self.engine(refused, config) as (backend, _layers), unittest.mock.patch.object(threading, "excepthook") as hook:
            layer = types.SimpleNamespace(impl=vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu"))
            config.compilation_config.static_forward_context["layer"] = layer
            with self.assertRaisesRegex(attnsmith.Unsupported, "layer: the cache's update: no kernel"):
                _layers.prepared(_layers.requests_of(config, ["layer"], 16), torch.device("cuda"))
            self.assertEqual(hook.call_count, 0)

    def test_what_begins_stops_no_layer(self):
        with self.engine(unittest.mock.Mock(), config_of(block_size=16, dtype=torch.float32)) as (backend, _):
            vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")
        with self.engine(unittest.mock.Mock(), config_of(block_size=16)) as (backend, _), unittest.mock.patch.object(
                threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")

    def test_nothing_begins_before_the_process_has_chosen_a_gpu(self):
        prepare = unittest.mock.Mock()
        with self.engine(prepare, config_of(block_size=16)) as (backend, _):
            with unittest.mock.patch.object(torch.cuda, "is_initialized", lambda: False):
                vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")
                self.wait_for_kernels()
        self.assertEqual(prepare.call_count, 0)

    def test_latent_layers_begin_too(self):
        prepare, config = unittest.mock.Mock(), config_of(block_size=16, use_mla=True)
        with self.engine(prepare, config) as (backend, _):
            from attnsmith.vllm import _mla
            fields = vars(vllm_cases.latent_impl(backend, "auto"))
            with unittest.mock.patch.object(_mla.MLACommonImpl, "__init__", lambda self, *_, **__: vars(self).update(fields)):
                layer = backend.get_impl_cls()(vllm_cases.HEADS, 80, 0.1, 1, None, None, "auto", None, "decoder", None)
            self.wait_for_kernels()
            self.assertEqual(prepare.call_count, len(list(layer.requests(16, config))))

    @unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA is not set")
    def test_kernels_are_compiled_when_the_builder_is_made(self):
        with release(NEWEST) as (backend, _):
            config = config_of()
            impl = vllm_cases.impl_of(backend, vllm_cases.DENSE[0], "cpu")
            config.compilation_config.static_forward_context["layer"] = types.SimpleNamespace(impl=impl)
            requests = [words for _, words in impl.requests(16, config)]
            runtime = attnsmith.Runtime(driver_path=FAKE_CUDA, log_level="off")
            self.addCleanup(runtime.close)
            from attnsmith.vllm import _layers
            with unittest.mock.patch.object(_layers, "default_runtime", lambda: runtime):
                builder = backend.get_builder_cls()(types.SimpleNamespace(block_size=16), ["layer"], config,
                                                    torch.device("cuda", 0))
            self.assertEqual(len(builder._kernels), len(requests))
            self.assertGreater(sum(map(len, builder._kernels)), len(requests))


#: Models of tests/models, flags of the command, and the layers that vLLM makes of them.
SERVED = {
    "llama-3.1-8b": ([], [dict(heads=32, kv_heads=8, head_size=128)]),
    "llama-3.1-70b": (["--tensor-parallel", "8", "--page-size", "32"], [dict(heads=8, kv_heads=1, head_size=128, block_size=32)]),
    "gpt-oss-20b": (["--kv-dtype", "fp8"], [dict(heads=64, kv_heads=8, head_size=64, sinks=True, window=window,
                                                 kv_cache_dtype="fp8") for window in (128, None)]),
    "gemma-2-9b": ([], [dict(heads=16, kv_heads=8, head_size=256, softcap=50.0, window=window) for window in (4096, None)]),
    "mistral-7b-v0.1": (["--kv-dtype", "fp8_per_token_head"],
                        [dict(heads=32, kv_heads=8, head_size=128, window=4096, kv_cache_dtype="fp8_per_token_head")]),
}


@unittest.skipIf(torch is None, "PyTorch is not installed")
@unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA is not set")
class Prewarmed(PythonTest):
    """`attnsmith prewarm --engine vllm` builds what a start records."""

    def keys(self, *words):
        done = subprocess.run([COMMAND, "prewarm", *map(str, words), "--sm", "90", "--dry-run", "--json", "--cache",
                               str(self.folder / "none")], capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {kernel["key"] for kernel in json.loads(done.stdout)["kernels"]}

    def recorded_start(self, requests, device=torch and torch.device("cuda", 0)):
        """The file in which a start recorded its requests. Every kernel is missing."""
        from attnsmith.vllm import _layers
        os.environ["FAKE_CUDA_SM"] = "90"
        file = self.folder / "recorded.jsonl"
        file.unlink(missing_ok=True)
        runtime = self.runtime(driver_path=FAKE_CUDA, nvrtc_path="/nowhere", on_miss="error", record_file=file)
        with unittest.mock.patch.object(_layers, "default_runtime", lambda: runtime):
            with self.assertRaises(attnsmith.KernelMissing):
                _layers.prepared(requests, device)
        return file

    def test_dense_models(self):
        for model, (flags, layers) in SERVED.items():
            with self.subTest(model), release(NEWEST) as (backend, _):
                requests = []
                for number, words in enumerate(layers):
                    case = vllm_cases.Case("layer", **words)
                    impl = vllm_cases.impl_of(backend, case, "cpu")
                    requests += [(f"{number}: {what}", one) for what, one in impl.requests(case.block_size, config_of())]
                recorded = self.keys("--recorded", self.recorded_start(requests))
                self.assertEqual(self.keys("--model", MODELS / f"{model}.json", "--engine", "vllm", *flags), recorded)
                self.assertGreater(len(recorded), 3)

    def test_context_parallelism(self):
        with release(NEWEST) as (backend, _):
            from attnsmith.vllm import _context_parallel
            with unittest.mock.patch.object(_context_parallel, "_found", lambda *names: None):
                impl = backend.get_impl_cls().__new__(backend.get_impl_cls())
                impl.dcp_world_size, impl.dcp_rank = 2, 0
                impl.__init__(8, 128, 128 ** -0.5, 1, None, None, "fp8", None)
            requests = list(impl.requests(16, config_of()))
            recorded = self.keys("--recorded", self.recorded_start(requests))
            self.assertEqual(self.keys("--model", MODELS / "llama-3.1-70b.json", "--engine", "vllm", "--kv-dtype", "fp8",
                                       "--tensor-parallel", "8", "--context-parallel", "2"), recorded)

    def test_latents(self):
        for dtype, flags in (("auto", []), ("fp8", ["--kv-dtype", "fp8"])):
            with self.subTest(dtype), release(NEWEST, config_of(use_mla=True)) as (backend, _):
                impl = vllm_cases.latent_impl(backend, dtype)
                impl.__dict__.update(num_heads=16, kv_lora_rank=512, qk_rope_head_dim=64, qk_head_dim=192, v_head_dim=128)
                requests = list(impl.requests(64, config_of()))
                recorded = self.keys("--recorded", self.recorded_start(requests))
                asked = self.keys("--model", MODELS / "deepseek-v3.json", "--engine", "vllm", "--page-size", "64",
                                  "--tensor-parallel", "8", *flags)
                self.assertEqual(asked, recorded)


if __name__ == "__main__":
    unittest.main()
