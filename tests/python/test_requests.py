"""plan, model, prewarm and cache: what they give, and what they refuse. Nothing here needs a GPU."""

import ctypes
import inspect
import json
import os
import pickle
import threading
import typing
import unittest
import unittest.mock
import warnings

from support import FAKE_NVRTC, MODELS, SMALL, PythonTest, attnsmith, nvrtc_missing, python

LLAMA = MODELS / "llama-3.1-8b.json"
DEEPSEEK = json.loads((MODELS / "deepseek-v3.json").read_text(encoding="utf-8"))
ODD_LATENTS = {**DEEPSEEK, "kv_lora_rank": 500}  # columns that no kernel has: the decode is unsupported
# The stub of NVRTC compiles nothing then.
FAILING = unittest.mock.patch.dict(os.environ, FAKE_NVRTC_FAIL="1")
# A type that nobody knows, with a field that nobody reads.
QUASAR = {"model_type": "quasar", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "kv_bend": 2,
          "torch_dtype": "bfloat16"}


class Config:
    """As transformers has them: its dict may hold a dtype of torch, and configs."""

    def __init__(self, fields):
        self.fields = fields

    def to_dict(self):
        dtype = type("dtype", (), {"__str__": lambda self: "torch.bfloat16", "itemsize": 2})()
        return {**self.fields, "torch_dtype": dtype, "quantization_config": Config({}) if self.fields else None}


class Plans(PythonTest):
    def test_plan(self):
        plan = attnsmith.plan(**SMALL, mask="causal", batch=2, q_len=128, kv_len=128, sm=90)
        self.assertEqual((plan["schema"], plan["device"]["sm"]), ("attnsmith.plan/1", "90"))
        request = plan["request"]
        self.assertEqual((request["head_dim_qk"], request["kv_heads"], request["mask"]), (64, 2, "causal"))
        self.assertEqual(self.runtime().plan(**SMALL, mask="causal", batch=2, q_len=128, kv_len=128, sm="90a"), plan)

    def test_none_is_not_given(self):
        self.assertEqual(attnsmith.plan(**SMALL, window_left=None, scale=None, sm=90), attnsmith.plan(**SMALL, sm=90))

    def test_numbers_of_other_kinds(self):
        """What has __index__ is an integer, what has __float__ a number: numpy's, say."""
        class Integer:
            def __index__(self):
                return 64
        plan = attnsmith.plan(**{**SMALL, "head_dim": Integer()}, lse=True, scale=ctypes.c_float(0.5).value, sm=90)
        self.assertEqual((plan["request"]["head_dim_qk"], plan["request"]["scale"]), (64, 0.5))

    def test_dtypes_of_other_kinds(self):
        """torch's, which says "torch.bfloat16", and those with a name, as numpy has them."""
        class Named:
            itemsize = 2
            name = "float16"
        torch_dtype = type("dtype", (), {"__str__": lambda self: "torch.bfloat16", "itemsize": 2})
        for given, word in ((torch_dtype(), "bf16"), (Named(), "fp16")):
            self.assertEqual(attnsmith.plan(**{**SMALL, "dtype": given}, sm=90)["request"]["dtype"], word)
        self.assertEqual(self.runtime().model(LLAMA, dtype=Named())["attentions"][0]["request"]["dtype"], "fp16")
        self.assert_refused("mask", attnsmith.plan, **SMALL, mask=Named(), sm=90)
        self.assert_refused("dtype", attnsmith.plan, **{**SMALL, "dtype": object()}, sm=90)

    def test_classes_of_numbers_are_dtypes(self):
        """As numpy has them, whose classes have what their objects have, and JAX, whose classes have a dtype."""
        float16 = type("float16", (), {"itemsize": property(lambda self: 2), "dtype": property(lambda self: None)})
        bfloat16 = type("bf16_of_jax", (), {"dtype": type("dtype", (), {"__str__": lambda self: "bfloat16", "itemsize": 2})()})
        for given, word in ((float16, "fp16"), (bfloat16, "bf16")):
            self.assertEqual(attnsmith.plan(**{**SMALL, "dtype": given}, sm=90)["request"]["dtype"], word)
            self.assertEqual(self.runtime().model(LLAMA, dtype=given)["attentions"][0]["request"]["dtype"], word)
        for name, given, example in (("dtype", float, "bf16"), ("kv_dtype", object(), "bf16"), ("index_dtype", int, "int32")):
            error = self.assert_refused(name, attnsmith.plan, **{**SMALL, name: given}, sm=90)
            self.assertIn(f'such as "{example}"', error.accepted)
        self.assertEqual(self.assert_refused("dtype", attnsmith.plan, dtype=float, head_dim=8, q_heads=1).value, "the class float")

    def test_a_model_given_to_what_takes_requests(self):
        runtime = self.runtime()
        for word in ("model", "models", "config"):
            for ask in (lambda: attnsmith.plan(**{word: LLAMA}, sm=90), lambda: runtime.plan(**SMALL, **{word: LLAMA}),
                        lambda: runtime.prepare(**{word: LLAMA}), lambda: runtime.prewarm({word: LLAMA}, sm=90)):
                self.assertIn("plan_model(config)", self.assert_refused(word, ask).accepted)
        for given in (LLAMA, str(LLAMA), LLAMA.read_text(encoding="utf-8"), [str(LLAMA)], [SMALL, LLAMA], [Config({})]):
            self.assertIn("models=", self.assert_refused("requests", runtime.prewarm, given, sm=90).accepted)
        self.assertIn("model=", self.assert_refused("request", runtime.coverage, str(LLAMA)).accepted)

    def test_without_a_gpu_the_remedy_is_in_the_words_of_python(self):
        runtime = self.runtime(driver_path="/nowhere/libcuda.so")
        for ask in (lambda: runtime.plan(**SMALL), lambda: runtime.plan_model(LLAMA), lambda: runtime.prewarm(SMALL),
                    lambda: runtime.prewarm(models=LLAMA)):
            error = self.assert_refused("sm", ask)
            self.assertIn("sm=", str(error))
            self.assertNotIn("--", str(error))

    def test_bad_words(self):
        for field, words in (("head_dim", {"head_dim": -63}), ("head_dim", {"head_dim": "64"}),
                             ("q_heads", {"q_heads": 0}), ("kv_heads", {"kv_heads": 3}), ("dtype", {"dtype": "fp64"}),
                             ("mask", {"mask": "casual"}), ("page_size", {"kv": "paged"}),
                             ("window_left", {"window_left": -2}), ("scale", {"scale": float("nan")}),
                             ("scale", {"scale": float("inf")}), ("scale", {"scale": 0.0}), ("lse", {"lse": 1}),
                             ("softcap", {"softcap": object()}), ("alignment", {"alignment": 3}),
                             ("batch", {"batch": 0}), ("kv_len", {"kv_len": 2**62}), ("q_len", {"q_len": 10**30})):
            with self.subTest(**words):
                self.assert_refused(field, attnsmith.plan, **{**SMALL, **words}, sm=90)

    def test_the_nearest_word_is_named(self):
        error = self.assert_refused("page_sise", attnsmith.plan, **SMALL, page_sise=16, sm=90)
        self.assertIn("page_size (did you mean that?)", error.accepted)

    def test_words_of_the_plain_functions(self):
        """A request has other names for them, which the refusal tells."""
        runtime = self.runtime()
        for word, value, remedy in (("causal", True, 'mask="causal"'), ("window", (3, 0), "window_left"),
                                    ("return_lse", True, "lse=True"), ("sinks", object(), "sink=True"),
                                    ("alibi_slopes", object(), "alibi=True")):
            given = {**SMALL, word: value}
            for ask in (lambda: attnsmith.plan(**given, sm=90), lambda: runtime.prepare(**given),
                        lambda: runtime.coverage(given), lambda: runtime.prewarm(given, sm=90)):
                with self.subTest(word=word):
                    self.assertIn(remedy, self.assert_refused(word, ask).accepted)
        self.assertEqual(attnsmith.plan(**SMALL, causal=None, sm=90), attnsmith.plan(**SMALL, sm=90))

    def test_arguments_of_prewarm(self):
        """What is given to it by name and belongs elsewhere is refused with the place that it belongs to."""
        runtime = self.runtime()
        for more in ({}, {"requests": SMALL}, {"models": LLAMA}):
            with self.subTest(more=list(more)):
                error = self.assert_refused("model", runtime.prewarm, **more, model=LLAMA, sm=90)
                self.assertIn("models=... (did you mean that?)", error.accepted)
                error = self.assert_refused("head_dim", runtime.prewarm, **more, head_dim=64, sm=90)
                self.assertIn("requests={'head_dim': ...}", error.accepted)
                self.assertNotIn("models=", error.accepted)
        error = self.assert_refused("dtype", runtime.prewarm, SMALL, dtype="bf16", sm=90)
        self.assertIn("requests={'dtype': ...}", error.accepted)
        self.assertIn("models=", error.accepted)
        for given in ({"requests": SMALL}, {"models": LLAMA}):
            for word, near in (("compil", "compile"), ("pushh", "push"), ("dry_run", "compile=False"), ("specs", "requests"),
                               ("tensor_paralel", "tensor_parallel")):
                error = self.assert_refused(word, runtime.prewarm, **given, **{word: 1}, sm=90)
                self.assertEqual(error.accepted, f"{near} (did you mean that?)")
            error = self.assert_refused("zzzzzz", runtime.prewarm, **given, zzzzzz=1, sm=90)
            self.assertLess({*inspect.signature(runtime.prewarm).parameters} - {"model_options"},
                            set(error.accepted.replace("one of ", "").split(", ")))
            self.assertIn("tensor_parallel", error.accepted)
        error = self.assert_refused("tensor_parallel", runtime.prewarm, SMALL, tensor_parallel=2, sm=90)
        self.assertIn("models=", error.accepted)

    def test_the_documentation_names_every_operation(self):
        operations = typing.get_args(attnsmith.words.CacheOperation)
        self.assertEqual({f"cache:{operation}" for operation in operations},
                         {feature for feature in attnsmith.features() if feature.startswith("cache:")})
        for operation in operations:
            for function in (attnsmith.cache, attnsmith.Runtime.cache):
                self.assertIn(f'"{operation}"', function.__doc__)

    def test_words_are_data(self):
        self.assert_refused("dtype", attnsmith.plan, **{**SMALL, "dtype": 'bf16", "q_heads": "'}, sm=90)
        self.assert_refused("mask", attnsmith.plan, **SMALL, mask="full\0", sm=90)

    def test_compute_capabilities(self):
        for sm in (75, -1, 90.7, 9.5, float("nan"), 2**40, 10**30, True, "", "9", "sm_", b"90", bytearray(b"90"),
                   object(), [], [None], [[90]], [True], {90: 1}, ["80", 75]):
            for function in (attnsmith.plan, lambda sm, **words: attnsmith.prewarm(words, sm=sm)):
                with self.subTest(sm=sm):
                    self.assert_refused("sm", function, **SMALL, sm=sm)
        for sm in ([80, 90], "80,90", "all"):
            self.assertIn("one compute capability", str(self.assert_refused("sm", attnsmith.plan, **SMALL, sm=sm)))

    def test_ways_to_write_compute_capabilities(self):
        class Integer:
            def __index__(self):
                return 90
        plan = attnsmith.plan(**SMALL, sm=90)
        for sm in ("90", "90a", "sm_90", "sm90", "sm_90a", "9.0", Integer(), [90], ("sm_90",), [Integer()], iter([90])):
            with self.subTest(sm=sm):
                self.assertEqual(attnsmith.plan(**SMALL, sm=sm), plan)
        for sm in ("80,90", "8.0,sm_90", ["80", 90], {80, 90}):
            plans = attnsmith.plan_model(LLAMA, sm=sm)["plans"]
            self.assertEqual({one["device"]["sm"] for one in plans}, {"80", "90"}, sm)
        every = {one["device"]["sm"] for one in attnsmith.plan_model(LLAMA, sm="all")["plans"]}
        self.assertLess({"80", "90", "100"}, every)
        if not attnsmith.devices():
            self.assert_refused("sm", attnsmith.plan, **SMALL, sm="native")

    def test_other_libraries_words_for_nothing(self):
        plain = attnsmith.plan(**SMALL, window_left=7, mask="causal", sm=90)
        self.assertEqual(attnsmith.plan(**SMALL, window_left=7, window_right=0, softcap=0.0, mask="causal", sm=90), plain)
        self.assert_refused("window_right", attnsmith.plan, **SMALL, window_left=7, window_right=3, mask="causal", sm=90)
        self.assertEqual(attnsmith.plan(**SMALL, window_left=-1, window_right=-1, sm=90), attnsmith.plan(**SMALL, sm=90))

    def test_tuning_files(self):
        self.assert_refused("/nowhere.json", self.runtime, tuning_files=["/nowhere.json"])
        table = self.folder / "table.json"
        table.write_text('{"schema": "attnsmith.tuning/1", "entries": []}')
        self.assertEqual(self.runtime(tuning_files=[table]).plan(**SMALL, sm=90)["schema"], "attnsmith.plan/1")

    def test_what_is_not_built(self):
        for words in ({"head_dim": 63}, {"head_dim": 520}, {"dtype": "fp32"}):
            with self.subTest(**words), self.assertRaises(attnsmith.Unsupported):
                attnsmith.plan(**{**SMALL, **words}, sm=90)
        with self.assertRaises(attnsmith.Unsupported) as caught:
            attnsmith.plan(**{**SMALL, "dtype": "fp32"}, sm=90)
        self.assertIsInstance(caught.exception, NotImplementedError)
        self.assertEqual(caught.exception.details["code"], "unsupported")
        self.assertIsInstance(caught.exception.refusals, list)

    def test_models(self):
        text = LLAMA.read_text(encoding="utf-8")
        folder = self.folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text(text)
        runtime = self.runtime()
        model = runtime.model(LLAMA)
        self.assertEqual((model["model_type"], model["unsupported"]), ("llama", []))
        self.assertEqual({one["phase"] for one in model["attentions"]}, {"prefill", "decode"})
        for config in (str(LLAMA), text, text.encode(), json.loads(text), folder, str(folder)):
            self.assertEqual(runtime.model(config), model)
        config = Config(json.loads(text))
        self.assertEqual(runtime.model(config), model)
        self.assertEqual(attnsmith.plan_model(config, sm=90), attnsmith.plan_model(LLAMA, sm=90))
        other = runtime.model(LLAMA, dtype="fp16", page_size=32, tensor_parallel=2)["attentions"][0]["request"]
        self.assertEqual((other["dtype"], other["page_size"], other["q_heads"]), ("fp16", 32, 16))

    def test_bad_models(self):
        runtime = self.runtime()
        for config in ("/nowhere/config.json", self.folder, "{}", "[", {"model_type": "llama"}, 7, None, object(),
                       {"model_type": "llama", (1, 2): 3}):
            with self.subTest(config=config), self.assertRaises(attnsmith.InvalidRequest):
                runtime.model(config)
        with self.assertRaises(attnsmith.InvalidRequest):
            runtime.model(LLAMA, page_sise=3)
        with self.assertRaises(attnsmith.InvalidRequest):
            runtime.model(LLAMA, tensor_parallel=7)
        for ask in (runtime.model, lambda model: runtime.plan_model(model, sm=90),
                    lambda model: runtime.prewarm(models=[model], sm=90)):
            self.assertEqual(self.assert_refused("model", ask, None).value, "None")

    def test_a_text_that_has_no_bytes(self):
        """A lone surrogate, as errors="surrogateescape" leaves it in a text."""
        runtime = self.runtime()
        text = '{"a": "\ud800"}'
        for ask in (runtime.model, lambda model: runtime.plan_model(model, sm=90),
                    lambda model: runtime.prewarm(models=model, sm=90), lambda model: runtime.coverage(model=model),
                    lambda model: runtime.cache("push", model=model, sm=90)):
            self.assertIn("UTF-8", str(self.assert_refused("model", ask, text)))

    def test_a_config_that_is_too_deep(self):
        deep = {}
        for _ in range(100000):
            deep = {"a": deep}
        for ask in (self.runtime().model, lambda model: attnsmith.cache("push", model=model, sm=90)):
            self.assert_refused("model", ask, deep)

    def test_a_long_input_is_not_repeated(self):
        runtime, long = self.runtime(), "x" * 100000
        for field, ask in (("model", lambda: runtime.model(long)), ("model", lambda: runtime.model(f"/nowhere/{long}")),
                           ("model", lambda: runtime.model("{\n" * 100000 + "\0")),
                           ("recorded", lambda: runtime.prewarm(recorded=long, sm=90)),
                           ("causal", lambda: runtime.plan(**SMALL, causal=long)),
                           ("sm", lambda: runtime.prewarm({**SMALL, "sm": long}, sm=90)),
                           ("sm", lambda: runtime.plan(**SMALL, sm=long.encode())),
                           ("log_level", lambda: self.runtime(log_level=long)),
                           ("cache_dirs", lambda: self.runtime(cache_dirs=long + "\0")),
                           ("batch", lambda: runtime.plan(**SMALL, batch=10**5000)),
                           ("scale", lambda: runtime.plan(**SMALL, scale=10**400))):
            error = self.assert_refused(field, ask)
            self.assertLess(len(error.value), 90)
            self.assertLess(len(str(error)), 300)
            self.assertEqual(len(str(error).splitlines()), 1)
        error = self.assert_refused("model", runtime.model, f"/nowhere/{'folder/' * 100}config.json")
        self.assertRegex(error.value, r"^/nowhere/.*\.\.\..*/config\.json$")

    def test_a_byte_order_mark_before_a_text(self):
        text = LLAMA.read_text(encoding="utf-8")
        for model in ("\ufeff" + text, ("\ufeff" + text).encode()):
            self.assertEqual(self.runtime().model(model), self.runtime().model(text))

    def test_a_nul_character_is_refused(self):
        """The library would read no further, and say nothing of what follows."""
        text = LLAMA.read_text(encoding="utf-8") + "\0garbage"
        file = self.folder / "config.json"
        file.write_text(text, encoding="utf-8")
        runtime = self.runtime()
        for given in (text, text.encode(), file, str(file), self.folder):
            for ask in (runtime.model, lambda model: runtime.plan_model(model, sm=90),
                        lambda model: runtime.prewarm(models=model, sm=90), lambda model: runtime.coverage(model=model),
                        lambda model: runtime.cache("push", model=model, sm=90)):
                error = self.assert_refused("model", ask, given)
                self.assertIn(f"a NUL character (byte {text.index(chr(0)) + 1}, line {text.count(chr(10)) + 1})", str(error))

    def test_files_are_read_to_their_limit_alone(self):
        runtime = self.runtime()
        for field, ask in (("model", runtime.model), ("model", lambda file: runtime.plan_model(file, sm=90)),
                           ("model", lambda file: runtime.prewarm(models=file, sm=90)),
                           ("model", lambda file: runtime.cache("push", model=file, sm=90)),
                           ("recorded", lambda file: runtime.prewarm(recorded=file, sm=90))):
            self.assertIn("bytes", self.assert_refused(field, ask, "/dev/zero").accepted)

    def test_a_text_and_a_file_have_the_same_limit(self):
        text = LLAMA.read_text(encoding="utf-8")
        file = self.folder / "config.json"
        most = int(self.assert_refused("model", self.runtime().model, "/dev/zero").accepted.split()[-2])
        file.write_text(text.ljust(most), encoding="utf-8")
        for given in (text.ljust(most), file):
            self.assertEqual(self.runtime().model(given), self.runtime().model(text))
        file.write_text(text.ljust(most + 1), encoding="utf-8")
        for given in (text.ljust(most + 1), file):
            with self.assertRaises(attnsmith.InvalidRequest) as caught:
                self.runtime().model(given)
            self.assertIn(f"at most {most} bytes", str(caught.exception))

    def test_a_text_may_begin_with_blanks(self):
        text = json.dumps(DEEPSEEK)
        for model in ("\n" + text, " \t" + text):
            self.assertEqual(attnsmith.plan_model(model, sm=90), attnsmith.plan_model(text, sm=90))

    def test_plans_of_models(self):
        plans = attnsmith.plan_model(LLAMA, sm=[80, 90], kv_len=512)
        self.assertEqual((plans["schema"], len(plans["plans"]), plans["unsupported"]), ("attnsmith.plans/1", 4, []))
        self.assertEqual({plan["device"]["sm"] for plan in plans["plans"]}, {"80", "90"})
        self.assertIn("phase", plans["plans"][0]["model"])
        plans = attnsmith.plan_model(ODD_LATENTS, sm=90)
        self.assertTrue(plans["unsupported"][0]["reason"])

    def test_latents_of_a_model_are_planned(self):
        plans = attnsmith.plan_model(DEEPSEEK, sm=90, strict=True)
        self.assertEqual([plan["request"]["op"] for plan in plans["plans"]], ["attention", "mla"])
        self.assertEqual(plans["plans"][1]["request"]["head_dim_ckv"], DEEPSEEK["kv_lora_rank"])

    def test_strict(self):
        runtime = self.runtime()
        self.assertEqual(runtime.plan_model(LLAMA, sm=90, strict=True)["warnings"], [])
        self.assertEqual(runtime.model(LLAMA, strict=True)["warnings"], [])
        plans = runtime.plan_model(QUASAR, sm=90)
        self.assertEqual([(one["kind"], one["field"]) for one in plans["warnings"]],
                         [("unread_field", "kv_bend"), ("unknown_type", "model_type")])
        for call in (runtime.model, lambda config, **words: runtime.plan_model(config, sm=90, **words)):
            with self.assertRaises(attnsmith.Unsupported) as caught:
                call(QUASAR, strict=True)
            self.assertEqual([one["candidate"] for one in caught.exception.refusals], ["kv_bend", "model_type"])
        with self.assertRaises(attnsmith.Unsupported) as caught:
            runtime.plan_model(ODD_LATENTS, sm=90, strict=True)
        self.assertEqual([one["candidate"] for one in caught.exception.refusals], ["full_attention/decode"])


class Failures(PythonTest):
    def test_a_prewarm_without_nvrtc_is_refused(self):
        runtime = self.runtime(nvrtc_path=self.folder)
        with self.assertRaises(attnsmith.LibraryMissing) as caught:
            runtime.prewarm(SMALL, sm=90)
        self.assertIn("correct what ATTNSMITH_NVRTC_PATH or nvrtc_path names", str(caught.exception))

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC is not set")
    def test_a_prewarm_that_builds_nothing_warns(self):
        """Said once: the report of a notebook's cell may be looked at by nobody."""
        runtime = self.runtime(nvrtc_path=FAKE_NVRTC)
        with FAILING, self.assertWarns(RuntimeWarning) as caught:
            report = runtime.prewarm(SMALL, sm=90)
        self.assertIn(f"{report['summary']['failed']} of {report['summary']['total']} kernels", str(caught.warning))
        self.assertGreater(report["summary"]["failed"], 0)
        self.assertEqual(len(caught.warnings), 1)
        self.assertEqual(caught.filename, __file__)

    def test_an_sm_within_a_request_of_a_prewarm_is_refused(self):
        """It would be passed over: the SMs are an argument."""
        for requests in ({**SMALL, "sm": 90}, [SMALL, {**SMALL, "sm": [80, 90]}]):
            self.assert_refused("sm", self.runtime(use_cache=False).prewarm, requests, sm=90)
        self.assert_refused("sm", self.runtime(use_cache=False).prewarm, {**SMALL, "sm": 90})

    def test_an_export_tells_what_the_reader_of_its_model_warns_of(self):
        runtime = self.runtime(nvrtc_path=None)
        runtime.prewarm(models=QUASAR, sm=90, page_size=16)
        told = runtime.cache("export", file=self.folder / "of_a_model.bundle", model=QUASAR, sm=90)
        self.assertEqual([warning["field"] for warning in told["warnings"]], ["kv_bend", "model_type"])
        self.assertEqual((told["unsupported"], told["skipped"]), ([], []))
        self.assertEqual(runtime.cache("export", file=self.folder / "all.bundle")["warnings"], [])
        image = runtime.cache("export", oci=self.folder / "image", tag="v1", model=QUASAR, sm=90)
        self.assertEqual((image["entries"], image["tag"], image["warnings"]), (told["entries"], "v1", told["warnings"]))
        self.assertRegex(image["digest"], "^sha256:[0-9a-f]{64}$")

    def test_a_suffix_that_says_nothing_warns(self):
        runtime = self.runtime()
        asks = (lambda sm: attnsmith.plan(**SMALL, sm=sm), lambda sm: runtime.plan(**SMALL, sm=sm),
                lambda sm: attnsmith.plan_model(LLAMA, sm=sm), lambda sm: runtime.plan_model(LLAMA, sm=[80, sm]))
        for ask in asks:
            with self.assertWarns(UserWarning) as caught:
                ask("sm_90f")
            self.assertRegex(str(caught.warning), r"sm_90f.* is taken as 90: .*suffix")
            self.assertEqual((len(caught.warnings), caught.filename), (1, __file__))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                ask("90a")

    @unittest.skipUnless(FAKE_NVRTC, "ATTNSMITH_FAKE_NVRTC is not set")
    def test_several_compute_capabilities_in_one_word(self):
        runtime = self.runtime(nvrtc_path=FAKE_NVRTC)
        for sm, expected in (("80,90", {"80", "90"}), (["sm_80", "9.0"], {"80", "90"}), ("sm_89", {"89"})):
            with FAILING, self.assertWarns(RuntimeWarning):
                report = runtime.prewarm(SMALL, sm=sm)
            self.assertEqual({str(kernel["sm"]).rstrip("a") for kernel in report["kernels"]}, expected)


class Prewarms(PythonTest):
    @classmethod
    def setUpClass(cls):
        cls.missing = nvrtc_missing()

    def setUp(self):
        super().setUp()
        if self.missing:
            self.skipTest(self.missing)

    def test_report_progress_and_cache(self):
        runtime, calls = self.runtime(), []
        report = runtime.prewarm({**SMALL, "head_dim": 8}, sm=90, jobs=2, progress=lambda *call: calls.append(call))
        summary = report["summary"]
        self.assertEqual((report["schema"], summary["failed"], report["unsupported"]), ("attnsmith.prewarm/1", 0, []))
        self.assertEqual(summary["compiled"], summary["total"])
        self.assertEqual([(done, total) for _, done, total in calls],
                         [(i + 1, summary["total"]) for i in range(summary["total"])])
        self.assertEqual({kernel["key"] for kernel, _, _ in calls}, {kernel["key"] for kernel in report["kernels"]})
        self.assertTrue(any("compiled" in line for _, line in self.log), self.log)

        # Strict raises when the work is done.
        with self.assertRaises(attnsmith.Unsupported) as caught:
            runtime.prewarm({**SMALL, "head_dim": 8}, models=QUASAR, sm=90, strict=True, kv="dense")
        self.assertEqual([one["candidate"] for one in caught.exception.refusals], ["kv_bend", "model_type"])
        report = runtime.prewarm(models=QUASAR, sm=90, kv="dense")
        self.assertEqual((report["summary"]["hits"], len(report["warnings"])), (report["summary"]["total"], 2))
        runtime.cache("clear")
        runtime.prewarm({**SMALL, "head_dim": 8}, sm=90)

        again = runtime.prewarm([{**SMALL, "head_dim": 8}] * 2, sm=["90"])
        self.assertEqual((again["summary"]["hits"], again["summary"]["compiled"]), (summary["total"], 0))
        self.assertEqual(runtime.cache()["entries"], summary["total"])
        self.assertEqual(len(runtime.cache("ls")["entries"]), summary["total"])
        self.assertEqual(runtime.cache("verify")["bad"], [])
        self.assertEqual(runtime.cache("clear")["schema"], "attnsmith.cache-clear/1")
        self.assertEqual(runtime.cache("stat")["entries"], 0)

    def test_flags_are_checked_before_the_work(self):
        runtime = self.runtime()
        for name in ("strict", "push", "compile"):
            self.assert_refused(name, runtime.prewarm, {**SMALL, "head_dim": 8}, sm=90, **{name: 1})
        self.assertEqual(runtime.cache()["entries"], 0)
        self.assert_refused("strict", runtime.plan_model, "/nowhere/config.json", sm=90, strict=1)

    def test_models_with_parts_that_are_not_supported(self):
        report = self.runtime().prewarm(models=ODD_LATENTS, requests=[{**SMALL, "head_dim": 8}], sm=90)
        self.assertTrue(report["unsupported"][0]["name"])
        self.assertEqual(report["summary"]["unsupported"], len(report["unsupported"]))

    def test_models_as_objects(self):
        config = Config({**json.loads(LLAMA.read_text(encoding="utf-8")), "head_dim": 8, "hidden_size": 256,
                         "num_attention_heads": 2, "num_key_value_heads": 1})
        summaries = [self.runtime().prewarm(models=models, sm=90, kv="dense")["summary"]
                     for models in (config, [config])]
        self.assertEqual((summaries[1]["hits"], summaries[1]["failed"]), (summaries[0]["total"], 0))

    def test_bad_requests(self):
        runtime = self.runtime()
        self.assert_refused("requests", runtime.prewarm, sm=90)
        self.assert_refused("requests", runtime.prewarm, None, models=None, recorded=None, sm=90)
        self.assert_refused("requests", runtime.prewarm, 7, sm=90)
        self.assert_refused("requests", runtime.prewarm, ["head_dim"], sm=90)
        self.assert_refused("models", runtime.prewarm, models=7, sm=90)
        self.assert_refused("head_dim", runtime.prewarm, {**SMALL, "head_dim": 0}, sm=90)
        self.assert_refused("page_size", runtime.prewarm, SMALL, sm=90, page_size=16)
        self.assertFalse((self.folder / "cache").exists() and any((self.folder / "cache").rglob("*.cubin")))
        with self.assertRaises(attnsmith.InvalidRequest):
            runtime.prewarm(SMALL, sm=91)
        if not runtime.devices():
            self.assert_refused("sm", runtime.prewarm, SMALL)

    def test_no_folder_is_a_cache_error(self):
        with self.assertRaises(attnsmith.CacheError) as caught:
            self.runtime(use_cache=False).prewarm(SMALL, sm=90)
        self.assertEqual(caught.exception.details["code"], "cache_error")

    def test_an_exception_in_progress_cancels_and_comes_out(self):
        class Mine(Exception):
            pass
        calls = []

        def progress(kernel, done, total):
            calls.append(done)
            raise Mine("enough")
        runtime = self.runtime()
        with self.assertRaisesRegex(Mine, "enough"):
            runtime.prewarm({**SMALL, "head_dim": 16}, sm=[80, 90], jobs=1, progress=progress)
        self.assertEqual(calls, [1])
        self.assertLess(runtime.cache()["entries"], 4, "the rest was compiled all the same")
        runtime.prewarm({**SMALL, "head_dim": 8}, sm=90)

    def test_ctrl_c_cancels(self):
        """In a process of its own, whose main thread gets the signal while kernels are compiled."""
        program = """
import attnsmith, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
runtime = attnsmith.Runtime(cache_dirs=sys.argv[1], log_level="off")
seen = []
def progress(kernel, done, total):
    seen.append((done, total))
    if done == 1:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
try:
    runtime.prewarm({"head_dim": 32, "q_heads": 4}, sm=[80, 90], jobs=1, progress=progress)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", seen[0][0], len(seen) < seen[0][1], runtime.cache()["entries"] < seen[0][1])
"""
        result = python(program, self.folder / "cache")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("interrupted 1 True True\n", "", 0))

    def test_from_another_thread(self):
        reports = []
        runtime = self.runtime()
        thread = threading.Thread(target=lambda: reports.append(runtime.prewarm({**SMALL, "head_dim": 8}, sm=90)))
        thread.start()
        thread.join()
        self.assertEqual(reports[0]["summary"]["failed"], 0)


class Runtimes(PythonTest):
    def test_options(self):
        self.assert_refused("log_level", attnsmith.Runtime, log_level="loud")
        with self.assertRaises(attnsmith.InvalidRequest):
            attnsmith.Runtime(compile_threads=-1)
        with self.assertRaises(attnsmith.InvalidRequest):
            attnsmith.Runtime(cache_dirs=["a\0b"])

    def test_integers_that_c_has_no_room_for(self):
        """ctypes would cut them off."""
        for name, values in (("compile_threads", (-1, 2**31, 2**32, "2", 2.0, True, None)),
                             ("cache_max_bytes", (-1, 2**63, 2**64, "2", 2.0, True))):
            for value in values:
                with self.subTest(name=name, value=value):
                    self.assert_refused(name, attnsmith.Runtime, **{name: value})
        runtime = self.runtime(driver_path="/nowhere/libcuda.so.1")
        for jobs in (-1, 2**32, 2**64 + 1, "2", 1.5, True, object()):
            self.assert_refused("jobs", runtime.prewarm, SMALL, sm=90, jobs=jobs)
        for device in (-1, 2**31, 2**32, "0", 0.0, True):
            for function in (runtime.prepare, runtime.prepare_async):
                self.assert_refused("device", function, **SMALL, device=device)
            self.assert_refused("device", runtime.allocate, 16, device)
        for nbytes in (-1, 2**64, 2**64 + 100, "16", 16.0):
            self.assert_refused("nbytes", runtime.allocate, nbytes)
        for stream in (-1, 2**64, "0"):
            self.assert_refused("stream", runtime.synchronize, stream)

    def test_close(self):
        with attnsmith.Runtime(cache_dirs=self.folder) as runtime:
            runtime.devices()
        with self.assertRaisesRegex(attnsmith.Error, "closed"):
            runtime.devices()
        runtime.close()

    def test_no_driver_is_no_device(self):
        runtime = self.runtime(driver_path="/nowhere/libcuda.so.1")
        self.assertEqual(runtime.devices(), [])
        with self.assertRaises(attnsmith.LibraryMissing) as caught:
            runtime.prepare(**SMALL)
        error = caught.exception
        self.assertIn("/nowhere/libcuda.so.1", error.tried[0])
        self.assertEqual(error.details["tried"], error.tried)

    def test_an_exception_in_the_log_is_reported_and_survived(self):
        program = """
import attnsmith
def log(level, line):
    raise ValueError("from the log")
runtime = attnsmith.Runtime(cache_dirs="/proc/nowhere", log=log, log_level="debug", driver_path="/nowhere.so")
print(runtime.devices())
"""
        result = python(program)
        self.assertEqual((result.returncode, result.stdout), (0, "[]\n"), result.stderr)
        if result.stderr:
            self.assertIn("ValueError: from the log", result.stderr)

    def test_the_default_runtime(self):
        runtime = self.runtime()
        attnsmith.set_default_runtime(runtime)
        self.addCleanup(attnsmith.set_default_runtime, None)
        self.assertIs(attnsmith.default_runtime(), runtime)
        self.assertEqual(attnsmith.cache()["directory"], str(self.folder / "cache"))

    def test_cache_operations(self):
        with self.assertRaises(attnsmith.InvalidRequest):
            self.runtime().cache("gc everything")
        with self.assertRaises(attnsmith.InvalidRequest) as raised:
            self.runtime().cache("gc", max_bytes="all")
        self.assertEqual(raised.exception.field, "max_bytes")
        with self.assertRaises(attnsmith.InvalidRequest):
            self.runtime().cache("stat", max_bytes=1)
        self.assertEqual(self.runtime().cache("gc", max_bytes=0)["kept_entries"], 0)
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            self.runtime().cache("stat", file="x")
        self.assertEqual(caught.exception.field, "file")
        with self.assertRaises(attnsmith.CacheError):
            self.runtime().cache("export", file=self.folder / "kernels.bundle", sm=90)
        with self.assertRaises(attnsmith.CacheError):
            self.runtime().cache("import", file=self.folder / "missing.bundle")
        with self.assertRaises(attnsmith.InvalidRequest):
            self.runtime().cache("export", file="x", model_options={"a": {1}})

    def test_options_of_cache_operations_are_named(self):
        runtime, nan, infinite = self.runtime(), float("nan"), float("inf")
        for field, operation, options in (
                ("max_bytes", "gc", {"max_bytes": nan}), ("max_bytes", "gc", {"max_bytes": infinite}),
                ("max_bytes", "gc", {"max_bytes": object()}), ("head_dim", "explain", {"request": {**SMALL, "head_dim": nan}}),
                ("scale", "explain", {"request": {**SMALL, "scale": -infinite}}),
                ("dtype", "explain", {"request": {**SMALL, "dtype": object()}}), ("key", "rm", {"key": b"ab"}),
                ("batch", "push", {"model": LLAMA, "model_options": {"batch": nan}})):
            with self.subTest(operation, **options):
                self.assert_refused(field, runtime.cache, operation, **options)
        error = self.assert_refused("max_bytes", runtime.cache, "gc", max_bytes=nan)
        self.assertEqual((error.value, error.accepted), ("nan", "a finite number"))

    def test_a_model_of_cache_operations_may_have_numbers_that_are_not_finite(self):
        """As config.json of models with Mamba layers has them, and as model() takes them."""
        config = {**json.loads(LLAMA.read_text(encoding="utf-8")), "time_step_limit": [0.0, float("inf")]}
        with self.assertRaises(attnsmith.CacheError):  # there are no kernels to export
            self.runtime().cache("export", file=self.folder / "kernels.bundle", model=config, sm=90)

    def test_what_is_no_cache_operation(self):
        operations = set(typing.get_args(attnsmith.words.CacheOperation))
        for operation in (5, None, b"\xff", ["ls"], "gc everything", "ls\0"):
            with self.subTest(operation=operation):
                error = self.assert_refused("operation", self.runtime().cache, operation)
                self.assertEqual(set(error.accepted.replace(" or ", ", ").split(", ")), operations)

    def test_cache_limits(self):
        self.assertEqual(self.runtime().cache()["max_bytes"], 2 << 30)
        self.assertEqual(self.runtime(cache_max_bytes=1 << 20).cache()["max_bytes"], 1 << 20)
        self.assertEqual(self.runtime(cache_max_bytes=0).cache()["max_bytes"], None)
        for words in ({"cache_max_bytes": -1}, {"cache_trust": "everybody"}, {"toolchain": "13.0"}):
            with self.assertRaises(attnsmith.InvalidRequest):
                self.runtime(**words)

    def test_cache_trust(self):
        (self.folder / "cache").mkdir(mode=0o777)
        (self.folder / "cache").chmod(0o777)
        stat = self.runtime(log=lambda level, line: None).cache()
        self.assertFalse(stat["writable"])
        self.assertIn("mode 0777", stat["not_trusted_because"])
        self.assertTrue(self.runtime(cache_trust="all").cache()["writable"])

    def test_nothing_is_called_after_the_end(self):
        """A runtime with a Python log, alive when the interpreter ends."""
        result = python("""
import attnsmith
runtime = attnsmith.Runtime(log=print, log_level="debug")
other = attnsmith.Runtime(log=print)
attnsmith.plan(head_dim=64, q_heads=4, sm=90)
""")
        self.assertEqual((result.returncode, result.stderr), (0, ""))


class Errors(PythonTest):
    def test_errors_are_one_family(self):
        for kind in (attnsmith.InvalidRequest, attnsmith.Unsupported, attnsmith.CompileError, attnsmith.DriverError,
                     attnsmith.LibraryMissing, attnsmith.CacheError, attnsmith.OutOfMemory, attnsmith.KernelMissing):
            self.assertTrue(issubclass(kind, attnsmith.Error))

    def test_from_the_library(self):
        from attnsmith.errors import from_library
        error = from_library(3, "no", json.dumps({"code": "compile_error", "log": "line", "options": ["-a"],
                                                  "numbered_source": "1 x"}))
        self.assertEqual((str(error), error.log, error.options, error.numbered_source, error.details["message"]),
                         ("no", "line", ["-a"], "1 x", "no"))
        error = from_library(4, "no", json.dumps({"call": "cuInit", "driver_code": 3, "meaning": "m"}))
        self.assertEqual((error.call, error.code, error.meaning), ("cuInit", 3, "m"))
        self.assertIsInstance(from_library(7, "no", "{}"), MemoryError)
        self.assertEqual(type(from_library(99, "", "not json")), attnsmith.Error)

    def test_errors_travel_between_processes(self):
        errors = [attnsmith.InvalidRequest("a", "b", "c"), attnsmith.Unsupported("a", [{"candidate": "b"}]),
                  attnsmith.CompileError("a", "b", ["c"], "d"), attnsmith.DriverError("a", "b", 3, "d"),
                  attnsmith.LibraryMissing("a", "b", ["c"]), attnsmith.CacheError("a", {"code": "cache_error"}),
                  attnsmith.KernelMissing("a", {"head_dim": 8}, 90, "b", "c"), attnsmith.OutOfMemory("a"),
                  attnsmith.Error("a")]
        self.assertEqual({type(error) for error in errors},
                         {one for one in vars(attnsmith.errors).values()
                          if isinstance(one, type) and issubclass(one, attnsmith.Error)})
        for error in errors:
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), copy.__dict__), (type(error), str(error), error.__dict__))


if __name__ == "__main__":
    unittest.main()
