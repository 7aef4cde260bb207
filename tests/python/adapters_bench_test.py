"""tools/bench/adapters.py without a GPU: its numbers, what it names, and its models, which need torch and their packages."""

import contextlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ENTRY = REPOSITORY / "tools/bench/adapters.py"
sys.path.insert(0, str(ENTRY.parent))

import adapter_models  # noqa: E402
import adapters  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
ABSENT = adapter_models.Model("a model of an absent package", "transformers", None)


def row(model="a", way=adapters.ACTIVATE, mode="forward", served=2, error=0.001, **fields):
    made = adapters.empty_row(adapter_models.Model(model, "torch", None), way, mode)
    made.update(calls=2, served=served, error=error, without=0.5, **fields)
    made["problem"] = adapters.problem_of(made)
    return made


def timed(sdpa, own, **fields):
    return adapters.with_times(row(**fields), {"sdpa": sdpa, "attnsmith": own})


class Numbers(unittest.TestCase):
    def test_a_ratio_is_the_median_of_those_of_the_rounds(self):
        made = timed([0.001, 0.002, 0.009], [0.001, 0.004, 0.003])  # by the medians of each side it would be 2 / 3
        self.assertAlmostEqual(made["ratio"], 1.0)
        self.assertAlmostEqual(made["sdpa_ms"], 2.0)
        self.assertAlmostEqual(made["attnsmith_ms"], 3.0)
        self.assertEqual(made["rounds"], 3)

    def test_the_interval_of_a_median_leaves_the_ranks_of_the_binomial_outside(self):
        for count, ranks in ((6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (20, (6, 15)), (30, (10, 21)), (100, (40, 61))):
            values = list(range(1, count + 1))
            random.Random(0).shuffle(values)
            self.assertEqual(adapters.interval_of_median(values), ranks)
        for count in range(adapters.LEAST_ROUNDS):
            self.assertIsNone(adapters.interval_of_median(range(count)))

    def test_a_case_is_clearly_slower_if_its_whole_interval_is(self):
        own = [1.0] * 9
        noisy, slower = [0.5] * 7 + [0.99] * 2, [0.5] * 7 + [0.97] * 2  # the second largest ends the interval
        rows = [timed(noisy, own, model="noisy"), timed(slower, own, model="slower"), timed([0.5], [1.0], model="one round"),
                timed(slower, own, model="partly", served=1), timed([2.0] * 9, own, model="faster", mode="training")]
        found = adapters.summary(rows)
        self.assertEqual((found["all"]["clearly_slower"], found["all"]["clearly_slower_cases"]),
                         (1, ["slower, activate(), forward"]))
        self.assertEqual(found["training"]["clearly_slower_cases"], [])
        self.assertEqual(found["partly served"]["clearly_slower_cases"], ["partly, activate(), forward"])
        text = adapters.tables({"cases": rows, "summary": found, "skipped": []})
        self.assertIn("slower, activate(), forward: clearly slower: 0.500, from 0.500 to 0.970", text)
        self.assertEqual(text.count("clearly slower: "), 2)

    def test_the_mean_is_geometric_and_the_least_has_a_name(self):
        found = adapters.summary([timed([2.0], [1.0], model="a"), timed([1.0], [2.0], model="b", mode="training"),
                                  timed([8.0], [1.0], model="c")])
        self.assertAlmostEqual(found["all"]["geomean"], 2.0)
        self.assertEqual((found["all"]["cases"], found["all"]["least"]), (3, 0.5))
        self.assertEqual(found["all"]["least_case"], "b, activate(), training")
        self.assertAlmostEqual(found["forward"]["geomean"], 4.0)
        self.assertAlmostEqual(found["training"]["geomean"], 0.5)
        self.assertAlmostEqual(found[adapters.ACTIVATE]["geomean"], 2.0)

    def test_a_case_that_was_not_served_counts_in_no_mean(self):
        rows = [timed([4.0], [1.0]), row(model="masked", served=0, passed_on={"a mask": 3})]
        found = adapters.summary(rows)
        self.assertEqual((found["all"]["cases"], found["all"]["geomean"]), (1, 4.0))
        text = adapters.tables({"cases": rows, "summary": found, "skipped": []})
        self.assertIn("masked, activate(), forward: not served: a mask", text)
        nothing = adapters.summary([rows[1]])["all"]
        self.assertEqual((nothing["cases"], nothing["geomean"], nothing["least"]), (0, None, None))

    def test_a_result_without_an_error_says_why(self):
        self.assertEqual(row(error=None, fault="WRONG: others")["problem"], "WRONG: others")
        self.assertRegex(row(error=None, fault="WRONG: others", served=0)["problem"], "^not served: ")

    def test_outputs_that_differ_are_wrong(self):
        for error in (0.041, math.inf, math.nan):
            self.assertRegex(row(error=error)["problem"], "^WRONG: ")
        self.assertIsNone(row(error=0.039)["problem"])
        self.assertIsNone(row(error=0.041, mode="training")["problem"])

    def test_partly_served_and_blind_cases_are_named(self):
        rows = [{**timed([1.0], [1.0], served=1), "passed_on": {"dropout": 1}},
                {**timed([1.0], [1.0], model="flat"), "without": 0.01}]
        document = {"cases": rows, "summary": adapters.summary(rows), "skipped": [{"model": "far", "why": "timm is absent"}]}
        text = adapters.tables(document)
        self.assertIn("a, activate(), forward: served 1 of 2 calls; passed on: dropout", text)
        self.assertIn("flat: its comparison says little", text)
        self.assertNotIn("a: its comparison says little", text)
        self.assertIn("far: skipped: timm is absent", text)
        self.assertEqual([document["summary"][name]["cases"] for name in ("partly served", "all", "forward")], [1, 1, 1])

    def test_calls_of_several_reports_are_added(self):
        served, reasons = adapters.merged([
            {"served": {"a": 2, "b": 1}, "passed_on": [{"function": "f", "why": "dropout", "to": "torch", "calls": 2}]},
            {"served": {}, "passed_on": [{"function": "g", "why": "dropout", "to": "torch", "calls": 3}]}])
        self.assertEqual((served, reasons), (3, {"dropout": 5}))

    def test_the_budget_is_shared_by_the_cases_that_are_left(self):
        now = [0.0]
        allowances = adapters.Allowances(100, 4, lambda: now[0])
        self.assertEqual(allowances.next(), 25)
        now[0] = 70
        self.assertEqual(allowances.next(), 10)
        now[0] = 500
        self.assertEqual(allowances.next(), 0)


class Turns(unittest.TestCase):
    def setUp(self):
        self.now, self.log, self.on, self.switches = 0.0, [], False, 0
        self.cold, self.longer = 0, 10  # the steps after a switch that take longer, and how much
        clock = mock.patch.object(adapters.time, "perf_counter", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)

    def time_them(self, allowance):
        def takes(name, seconds):
            def step():
                self.log.append(name)
                self.assertEqual(self.on, name == "attnsmith")
                self.now += seconds + (self.longer if self.cold > 0 else 0)
                self.cold -= 1
            return step

        @contextlib.contextmanager
        def switch(on):
            self.switches += 1
            self.on, self.cold = on, adapters.SETTLING_STEPS
            yield
            self.on = False

        sides = {"sdpa": (lambda: switch(False), takes("sdpa", 0.02)),
                 "attnsmith": (lambda: switch(True), takes("attnsmith", 0.01))}
        return adapters.time_by_turns(sides, 9, allowance, lambda: None)

    def test_each_is_timed_while_it_is_switched_on_and_has_settled(self):
        times, steps = self.time_them(1e6)
        self.assertEqual({name: len(some) for name, some in times.items()}, {"sdpa": 9, "attnsmith": 9})
        for name, seconds in (("sdpa", 0.02), ("attnsmith", 0.01)):
            self.assertTrue(all(abs(time - seconds) < 1e-9 for time in times[name]))
        self.assertGreaterEqual(0.02 * steps, adapters.TURN_SECONDS)

    def test_a_round_is_a_turn_of_each_and_costs_one_switch(self):
        _, steps = self.time_them(1e6)
        turns = [(name, len(list(some))) for name, some in itertools.groupby(self.log)]
        self.assertEqual([name for name, _ in turns], ["sdpa", "attnsmith"] * 5 + ["sdpa"])
        self.assertEqual(self.switches, 2 + 9)
        first, settling = adapters.FIRST_SETTLING_STEPS + adapters.LEAST_STEPS, adapters.SETTLING_STEPS
        self.assertEqual([count for _, count in turns],
                         [first, first + steps, *[settling + 2 * steps] * 8, settling + steps])

    def test_rounds_are_cut_and_not_below_the_least(self):
        self.longer = 0
        for name, value in (("SETTLING_STEPS", 2), ("FIRST_SETTLING_STEPS", 3), ("LEAST_STEPS", 2), ("TURN_SECONDS", 0.04)):
            patch = mock.patch.object(adapters, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        for allowance, rounds in ((0.0, adapters.LEAST_ROUNDS), (0.9, 8)):  # 0.15 s, and then rounds of 0.1 and of 0.08 s
            self.now = 0.0
            times, _ = self.time_them(allowance)
            self.assertEqual((len(times["sdpa"]), len(times["attnsmith"])), (rounds, rounds))


class NoisyHost:
    """Steps on a host whose speed wanders by 10% within 0.2 seconds, and that is away for 5 ms in one step of a hundred."""

    WANDERS, WITHIN, AWAY = 0.1, 0.2, 0.005

    def __init__(self, seed):
        self.random, self.now = random.Random(seed), 0.0
        self.slowness = self.random.gauss(0, self.WANDERS)

    def step(self, seconds):
        taken = seconds * math.exp(self.slowness) + (self.AWAY if self.random.random() < 0.01 else 0)
        self.now += taken
        kept = math.exp(-taken / self.WITHIN)
        self.slowness = self.slowness * kept + self.random.gauss(0, self.WANDERS * math.sqrt(1 - kept * kept))


class Noise(unittest.TestCase):
    RUNS, RATIO = 150, 0.95

    def by_medians_apart(self, seed, seconds):
        """9 turns of 30 ms of each side, each after a switch. Gives the ratio and how long it took."""
        host, times = NoisyHost(seed), ([], [])
        for turn in range(9):
            for side in (0, 1) if turn % 2 else (1, 0):
                for _ in range(2):
                    host.step(seconds[side])
                begin, steps = host.now, math.ceil(0.03 / max(seconds))
                for _ in range(steps):
                    host.step(seconds[side])
                times[side].append((host.now - begin) / steps)
        return statistics.median(times[0]) / statistics.median(times[1]), host.now

    def by_rounds(self, seed, seconds, allowance):
        host = NoisyHost(seed)
        sides = {name: (contextlib.nullcontext, lambda time=time: host.step(time))
                 for name, time in zip(("sdpa", "attnsmith"), seconds)}
        with mock.patch.object(adapters.time, "perf_counter", lambda: host.now):
            times, _ = adapters.time_by_turns(sides, 10 ** 6, allowance, lambda: None)
        self.assertLess(host.now, 1.1 * allowance)
        return adapters.with_times(row(), times)

    def spread(self, ratios):
        return statistics.pstdev(map(math.log, ratios))

    def measured(self, seconds):
        apart = [self.by_medians_apart(seed, seconds) for seed in range(self.RUNS)]
        rounds = [self.by_rounds(1000 + seed, seconds, taken) for seed, (_, taken) in enumerate(apart)]
        return [ratio for ratio, _ in apart], rounds

    def test_rounds_spread_less_than_medians_apart_in_the_same_time(self):
        for step, less in ((0.003, 0.5), (0.013, 0.85)):
            apart, rounds = self.measured((self.RATIO * step, step))
            ratios = [made["ratio"] for made in rounds]
            self.assertLess(self.spread(ratios), less * self.spread(apart), step)
            self.assertAlmostEqual(statistics.mean(ratios), self.RATIO, delta=0.01)

    def test_the_interval_holds_the_true_ratio(self):
        _, rounds = self.measured((self.RATIO * 0.003, 0.003))
        held = sum(low <= self.RATIO <= high for low, high in (made["interval"] for made in rounds))
        self.assertGreater(held, 0.9 * self.RUNS)
        widths = [math.log(high / low) for low, high in (made["interval"] for made in rounds)]
        self.assertLess(statistics.median(widths), 8 * self.spread(made["ratio"] for made in rounds))


class Models(unittest.TestCase):
    def test_names_are_unique_and_modes_known(self):
        names = [model.name for model in adapter_models.MODELS]
        self.assertEqual(len(set(names)), len(names))
        self.assertGreaterEqual(len(names), 20)
        for model in adapter_models.MODELS:
            self.assertLessEqual(set(model.modes), set(adapters.MODES))

    def test_a_model_of_an_absent_package_is_named(self):
        with mock.patch.object(adapter_models, "MODELS", (ABSENT,)), \
                mock.patch.object(adapter_models.importlib.util, "find_spec", lambda name: None):
            chosen, skipped = adapters.select(re.compile(""), ["forward"])
        self.assertEqual(chosen, [])
        self.assertEqual(skipped, [{"model": ABSENT.name, "why": "transformers is not installed (pip install transformers)"}])
        self.assertEqual(adapters.listing(chosen, skipped), [f"{ABSENT.name}: skipped: {skipped[0]['why']}"])

    def test_a_model_whose_package_cannot_be_imported_is_named(self):
        def fail(name):
            raise ImportError("no torchvision")

        chosen = [(ABSENT, [(adapters.ACTIVATE, "forward")])]
        with mock.patch.object(adapters.importlib, "import_module", fail):
            self.assertEqual(adapters.import_packages(chosen), (
                [], [{"model": ABSENT.name, "why": "import transformers: ImportError: no torchvision"}]))
        with mock.patch.object(adapters.importlib, "import_module", lambda name: None):
            self.assertEqual(adapters.import_packages(chosen), (chosen, []))

    def test_names_and_modes_choose(self):
        everything = mock.patch.object(adapter_models.Model, "missing", lambda model: None)
        with everything:
            chosen, _ = adapters.select(re.compile("nanochat|bert, padded", re.IGNORECASE), ["compile"])
            ((model, cases),) = chosen
            self.assertEqual((model.name[:8], cases), ("nanochat", [(adapters.ACTIVATE, "compile")]))
            ((_, cases),), _ = adapters.select(re.compile("^BERT, padded"), list(adapters.MODES))
        ways = (adapters.ACTIVATE, adapters.BY_NAME)
        self.assertEqual(cases, [(way, mode) for mode in ("forward", "training") for way in ways])


class Command(unittest.TestCase):
    def test_list_has_every_model(self):
        with mock.patch("builtins.print") as printed:
            self.assertEqual(adapters.main(["--list"]), 0)
        lines = printed.call_args[0][0].splitlines()
        self.assertEqual(len(lines), len(adapter_models.MODELS))
        for model in adapter_models.MODELS:
            why = model.missing()
            beginning = f"{model.name}: skipped: {why}" if why else f"{model.name:40s} {', '.join(model.ways)}; "
            self.assertEqual(len([line for line in lines if line.startswith(beginning)]), 1, model.name)

    def test_without_a_gpu_it_is_skipped(self):
        done = subprocess.run([sys.executable, "-B", str(ENTRY)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=120, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("skipped: ", done.stdout)

    def test_bad_words_are_refused(self):
        for arguments in (("--modes", "backward"), ("--modes", ""), ("--models", "("), ("--models", "no such model", "--list"),
                          ("--rounds", "5"), ("--seconds", "0")):
            with mock.patch("sys.stderr"), self.assertRaises(SystemExit) as raised:
                adapters.main(arguments)
            self.assertEqual(raised.exception.code, 2, arguments)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Programs(unittest.TestCase):
    def test_every_installed_model_is_built_and_takes_its_inputs(self):
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        for model in adapter_models.MODELS:
            if model.missing():
                continue
            with self.subTest(model=model.name), contextlib.ExitStack() as stack:
                if model.module == "timm":  # which reads numbers while it builds a model
                    device = "meta"
                else:
                    device = "cpu"
                    stack.enter_context(FakeTensorMode())
                    # Module.to fails for such tensors, so weights have the dtype from the start.
                    stack.enter_context(mock.patch.object(torch.nn.Module, "to", lambda module, *others: module))
                    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                    torch.set_default_dtype(torch.bfloat16)
                program = adapter_models.build(model, device)
                calls = []
                with torch.no_grad(), adapters.watched_attention(lambda result: calls.append(1) or result):
                    output = program.forward()
                self.assertTrue(calls, "no call of scaled_dot_product_attention")
                if program.labels is not None:
                    self.assertEqual(output.shape[:-1], program.labels.shape)
                self.assertTrue(output.is_floating_point())


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Comparing(unittest.TestCase):
    def setUp(self):
        import torch
        self.wanted = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}

    def compare(self, wanted=None, **found):
        import torch

        def tensors(changed):
            return {**self.wanted, **{name: torch.tensor(values) for name, values in changed.items()}}

        return adapters.compare(tensors(found), tensors(wanted or {}))

    def test_the_error_is_of_all_tensors_together(self):
        error, fault = self.compare(a=[3.0, 0.3], b=[3.6])
        self.assertAlmostEqual(error, 0.1)
        self.assertIsNone(fault)

    def test_large_numbers_are_finite(self):
        error, fault = self.compare(wanted={"a": [1e30, 1e30]}, a=[1e30, 2e30])
        self.assertAlmostEqual(error, math.sqrt(0.5))
        self.assertIsNone(fault)

    def test_what_is_not_finite_is_told_apart(self):
        for bad in (math.nan, math.inf, -math.inf):
            self.assertEqual(self.compare(b=[bad]), (
                None, "WRONG: attnsmith's result is not finite: 1 of 2 tensors, such as b"))
            self.assertEqual(self.compare(wanted={"a": [0.0, bad]}, a=[0.0, bad], b=[bad]), (
                None, "failed: SDPA's own result is not finite: 1 of 2 tensors, such as a"))

    def test_other_tensors_are_named(self):
        import torch
        fault = "WRONG: attnsmith leaves other tensors than SDPA, such as b"
        self.assertEqual(self.compare(b=[4.0, 4.0]), (None, fault))
        self.assertEqual(adapters.compare({"a": self.wanted["a"]}, self.wanted), (None, fault))
        self.assertEqual(adapters.compare({**self.wanted, "c": torch.ones(1)}, self.wanted), (None, fault[:-1] + "c"))

    def test_nothing_is_no_measure(self):
        self.assertEqual(self.compare(wanted={"a": [0.0, 0.0], "b": [0.0]}), (None, "failed: SDPA's own result is 0"))


class FakeAdapter:
    """attnsmith.torch, with an attention of its own in the place of torch's."""

    def __init__(self, attention):
        self.sdpa, self.attention, self.calls, self.counts = None, attention, 0, True

    def activate(self):
        import torch
        self.sdpa = torch.nn.functional.scaled_dot_product_attention

        def call(*tensors, **options):
            found = self.attention(self.sdpa, tensors, options)
            if self.counts:
                self.calls += found is not None
            return self.sdpa(*tensors, **options) if found is None else found

        torch.nn.functional.scaled_dot_product_attention = call

    def deactivate(self):
        import torch
        torch.nn.functional.scaled_dot_product_attention = self.sdpa

    def reset(self):
        self.calls = 0

    def report(self):
        return {"served": {"f": self.calls} if self.calls else {}, "passed_on": []}


def in_fp32(sdpa, tensors, options):
    return sdpa(*(tensor.float() for tensor in tensors), **options).to(tensors[0].dtype)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Measuring(unittest.TestCase):
    def setUp(self):
        import torch
        from adapter_programs import NanoChat, NanoGpt

        def program(module):
            return lambda: adapter_models.Program(module(), {"tokens": torch.arange(64).view(2, 32)}, lambda logits: logits,
                                                  torch.arange(64).view(2, 32))

        self.torch = torch
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # for such small models others only wait
        self.models = [
            adapter_models.Model("chat", "torch", program(lambda: NanoChat(64, 32, 2, 4, 2, 16))),
            adapter_models.Model("gpt", "torch", program(lambda: NanoGpt(64, 32, 2, 4, 64)))]
        for patch in (mock.patch.object(torch.cuda, "synchronize", lambda: None),
                      mock.patch.object(adapters, "TURN_SECONDS", 1e-4)):
            patch.start()
            self.addCleanup(patch.stop)
        build = adapter_models.build
        on_the_cpu = mock.patch.object(adapter_models, "build", lambda model, device: build(model, "cpu"))
        on_the_cpu.start()
        self.addCleanup(on_the_cpu.stop)

    def measure(self, attention, modes=("forward", "training"), rounds=adapters.LEAST_ROUNDS):
        attnsmith = types.SimpleNamespace(torch=FakeAdapter(attention))
        if "compile" in modes:  # which would compile again for each number
            attnsmith.torch.counts, attnsmith.torch.report = False, lambda: {"served": {"f": 2}, "passed_on": []}
        with mock.patch("sys.stderr"):
            return [row for model in self.models for row in adapters.measure_model(
                attnsmith, model, adapters.cases_of(model, modes), rounds, lambda: 0.0)]

    def test_an_attention_that_is_right_has_ratios(self):
        for row in self.measure(in_fp32):
            self.assertIsNone(row["problem"], row)
            self.assertEqual((row["served"], row["calls"], row["rounds"]), (2, 2, adapters.LEAST_ROUNDS))
            self.assertTrue(0 < row["interval"][0] <= row["ratio"] <= row["interval"][1], row)
            self.assertTrue(0 < row["error"] < row["bound"])
            self.assertFalse(adapters.is_blind(row), row)

    def test_an_attention_that_is_wrong_is_found_and_not_timed(self):
        def not_causal(sdpa, tensors, options):
            return sdpa(*tensors, **{**options, "is_causal": False})

        for row in self.measure(not_causal):
            self.assertRegex(row["problem"], "^WRONG: ", row)
            self.assertIsNone(row["ratio"])

    def test_nan_is_wrong(self):
        for row in self.measure(lambda sdpa, tensors, options: sdpa(*tensors, **options) * math.nan):
            self.assertRegex(row["problem"], "^WRONG: attnsmith's result is not finite: ", row)

    def test_nan_of_a_model_itself_is_not_attnsmiths(self):
        build = adapter_models.build

        def with_nan(model, device):
            program = build(model, device)
            with self.torch.no_grad():
                next(program.module.parameters()).fill_(math.nan)
            return program

        with mock.patch.object(adapter_models, "build", with_nan):
            for row in self.measure(in_fp32):
                self.assertRegex(row["problem"], "^failed: SDPA's own result is not finite: ", row)

    def test_without_rounds_cases_are_run_and_compared_and_not_timed(self):
        with mock.patch.object(adapters, "time_by_turns", mock.Mock(side_effect=AssertionError)):
            for row in self.measure(in_fp32, rounds=0):
                self.assertEqual((row["problem"], row["ratio"], row["served"]), (None, None, 2))
                self.assertTrue(0 < row["error"] < row["bound"])

    def measure_graph(self, captured):
        """captured: what serves the forward that is captured. That before is served by another, as always."""
        self.models = [self.models[0]._replace(modes=("graph",))]
        capturing = []

        def graph_of(calls):
            for state in (False, True):
                capturing[:] = [state]
                for call in calls:
                    call()
            return mock.Mock()  # replays nothing: what the capture left stays

        def attention(sdpa, tensors, options):
            return (captured if capturing[0] else in_fp32)(sdpa, tensors, options)

        with mock.patch.object(adapters, "graph_of", graph_of):
            (made,) = self.measure(attention, ("graph",))
        return made

    def test_only_the_calls_in_a_graph_count(self):
        made = self.measure_graph(in_fp32)
        self.assertEqual((made["problem"], made["served"], made["calls"]), (None, 2, 2))
        self.assertIsNotNone(made["ratio"])

    def test_a_graph_without_calls_is_not_served(self):
        made = self.measure_graph(lambda sdpa, tensors, options: None)
        self.assertRegex(made["problem"], "^not served: ")
        self.assertEqual((made["served"], made["ratio"]), (0, None))

    def test_a_compiled_forward_runs_what_was_switched_on_when_it_was_compiled(self):
        from torch._inductor import compile_fx

        self.models = [self.models[0]._replace(modes=("compile",))]
        with mock.patch.object(compile_fx, "compile_fx", lambda graph, inputs: graph):
            (made,) = self.measure(in_fp32, ("compile",))
            (wrong,) = self.measure(lambda sdpa, tensors, options: tensors[0] * 2, ("compile",))
        self.assertTrue(0 < made["error"] < made["bound"], made)
        self.assertRegex(wrong["problem"], "^WRONG: ")

    def test_an_attention_that_serves_nothing_is_named(self):
        for row in self.measure(lambda sdpa, tensors, options: None):
            self.assertRegex(row["problem"], "^not served: ", row)
            self.assertIsNone(row["ratio"])

    def test_a_model_that_fails_is_named(self):
        def fail(sdpa, tensors, options):
            raise ValueError("no kernel\nfor this")

        for row in self.measure(fail):
            self.assertEqual(row["problem"], "failed: ValueError: no kernel")
        self.assertIs(self.torch.nn.functional.scaled_dot_product_attention, self.torch._C._nn.scaled_dot_product_attention)

    def document(self, *options):
        """What a run prints and writes."""
        torch = self.torch
        attnsmith = types.SimpleNamespace(torch=FakeAdapter(in_fp32), __version__="1")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            file = pathlib.Path(folder) / "adapters.json"
            for patch in (mock.patch.object(adapter_models, "MODELS", (*self.models, ABSENT)),
                          mock.patch.object(adapter_models.Model, "missing", lambda model: "absent" if model is ABSENT else None),
                          mock.patch.object(adapters, "is_skipped", lambda: False),
                          mock.patch.object(adapters, "adapters_of", lambda chosen: attnsmith),
                          mock.patch.object(torch.cuda, "get_device_name", lambda: "a GPU"), mock.patch("sys.stderr")):
                stack.enter_context(patch)
            out = stack.enter_context(mock.patch("sys.stdout"))
            self.assertEqual(adapters.main(["--modes", "forward", "--json", str(file), "--seconds", "1", *options]), 0)
            text = "".join(call.args[0] for call in out.write.call_args_list)
            return text, json.loads(file.read_text(encoding="utf-8"))

    def test_the_document_has_what_was_measured_and_what_was_skipped(self):
        text, document = self.document()
        self.assertIn(f"{ABSENT.name}: skipped: absent", text)
        self.assertEqual(document["skipped"], [{"model": ABSENT.name, "why": "absent"}])
        self.assertEqual([row["model"] for row in document["cases"]], ["chat", "gpt"])
        self.assertAlmostEqual(document["summary"]["all"]["geomean"],
                               math.sqrt(document["cases"][0]["ratio"] * document["cases"][1]["ratio"]))

    def test_prepare_times_nothing(self):
        text, document = self.document("--prepare")
        self.assertEqual([(row["ratio"], row["problem"], row["served"]) for row in document["cases"]], [(None, None, 2)] * 2)
        self.assertEqual(document["summary"]["all"]["cases"], 0)
        self.assertIn("| chat, activate(), forward |", text)


if __name__ == "__main__":
    unittest.main()
