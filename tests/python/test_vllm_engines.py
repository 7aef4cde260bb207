"""The drivers of tools/engines that run vLLM: what they do with an engine's answers, on an engine that is made up."""

import contextlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools/engines"
sys.path.append(str(TOOLS))

import greedy_tokens
import seeded_models
import vllm_check
import vllm_speed
import vllm_worker
from vllm_engines import Engine, Failed, matching, need_gpu

WORKER = """
import json, sys
options = json.loads(sys.argv[1])
print(json.dumps({"error": "no such model"} if options["model"] == "gone" else {"ok": {"backends": ["AttnsmithImpl"]}}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "end":
        sys.exit(3)
    print(json.dumps({"error": "refused"} if command["do"] == "refuse" else {"ok": command}), flush=True)
"""


def answers(tokens, gaps):
    """An answer of Worker.generate(): the tokens, each as likely as the next one but for a gap."""
    return {"tokens": tokens, "best": [[[token, -1.0], [token + 1, -1.0 - gap]] for token, gap in zip(tokens, gaps)]}


class Protocol(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.worker = pathlib.Path(folder.name) / "worker.py"
        self.worker.write_text(WORKER)

    def test_commands_and_answers(self):
        with Engine(self.worker.with_name("log"), worker=self.worker, model="here") as engine:
            self.assertEqual(engine.wait(), {"backends": ["AttnsmithImpl"]})
            self.assertEqual(engine.decode(steps=3, do="all"), {"do": "decode", "words": {"steps": 3, "do": "all"}})
            with self.assertRaisesRegex(Failed, "refused"):
                engine.refuse()
            self.assertEqual(engine.decode(steps=4)["words"], {"steps": 4})
            with self.assertRaisesRegex(Failed, "ended with 3; see .*log"):
                engine.end()

    def test_an_engine_that_does_not_start(self):
        with Engine(self.worker.with_name("log"), worker=self.worker, model="gone") as engine, self.assertRaisesRegex(Failed, "no such model"):
            engine.wait()


class Repeats:
    """An engine that goes on from a prompt as `tokens` says for each prompt's first token, whatever the peer chose."""

    def __init__(self, tokens):
        self.tokens, self.asked = tokens, 0

    def generate(self, prompts, tokens, logprobs=2):
        self.asked += 1
        return [answers(self.tokens[prompt[0]][len(prompt) - 1:len(prompt) - 1 + tokens], [1.0] * tokens) for prompt in prompts]


class Compared(unittest.TestCase):
    def compare(self, gaps, own, bound=0.5):
        steps = greedy_tokens.TOKENS
        peer = list(range(10, 10 + steps))
        engine = Repeats({0: own(peer)})
        decided, total, wrong = greedy_tokens.compare(engine, [[0]], [answers(peer, gaps)], bound)
        self.assertEqual(total, steps)
        return decided, [(one["prompt"], one["step"]) for one in wrong], engine.asked

    def test_equal_tokens(self):
        self.assertEqual(self.compare([1.0] * greedy_tokens.TOKENS, list), (greedy_tokens.TOKENS, [], 1))

    def test_a_wrong_token_at_a_decided_step(self):
        def own(peer):
            return peer[:5] + [0] + peer[6:]
        self.assertEqual(self.compare([1.0] * greedy_tokens.TOKENS, own)[1:], ([(0, 5)], 1))

    def test_another_token_at_an_undecided_step_is_followed_by_the_peers(self):
        gaps = [1.0] * greedy_tokens.TOKENS
        gaps[5] = 0.1

        def own(peer):
            return peer[:5] + [0] + peer[6:20] + [0] + peer[21:]
        decided, wrong, asked = self.compare(gaps, own)
        self.assertEqual((decided, wrong, asked), (greedy_tokens.TOKENS - 1, [(0, 20)], 2))

    def test_noise_is_of_gaps_with_equal_prefixes(self):
        one, two = answers([1, 2, 3], [1] * 3), answers([1, 2, 3], [1.3, 0.6, 6.0])
        two["tokens"][1] = 9  # the third step has another prefix
        self.assertAlmostEqual(greedy_tokens.noise_of([one], [two]), math.sqrt((0.09 + 0.16) / 2))
        two["best"][0][1][0] = 30  # not the reference's second token
        self.assertAlmostEqual(greedy_tokens.noise_of([one], [two]), 0.4)

    def test_wrong_answers_of_another_peer(self):
        one = answers([1, 2, 3], [1, 1, 0.1])
        others = [answers(tokens, [1] * 3) for tokens in ([1, 2, 3], [1, 4, 3], [2, 2, 3], [1, 2, 4])]
        self.assertEqual(greedy_tokens.wrong_of([one] * 4, others, 0.5), 2)

    def test_what_fails_a_check(self):
        row = {"wrong": 0, "decided": 30, "steps": 48, "drafts": None, "graphs": "FULL",
               "start": {"backends": ["AttnsmithDenseBackend"], "cudagraph_mode": "FULL"}}
        self.assertIsNone(vllm_check.problem_of(row))
        for changed, reason in (({"wrong": 1}, "wrong token"), ({"decided": 20}, "fewer than half"),
                                ({"start": {"backends": ["FlashAttentionBackend"]}}, "did not use attnsmith"),
                                ({"start": {**row["start"], "cudagraph_mode": "PIECEWISE"}}, "mode PIECEWISE"),
                                ({"drafts": {"vllm:spec_decode_num_accepted_tokens": 0}}, "no draft"), ({"drafts": {}}, "no draft")):
            self.assertIn(reason, vllm_check.problem_of({**row, **changed}))
        self.assertIsNone(vllm_check.problem_of({**row, "drafts": {"vllm:spec_decode_num_accepted_tokens": 5}}))

    def test_batches_with_other_bits(self):
        needle, alone = [1, 2, 3], answers([7, 8], [1.0, 1.0])

        class Engine:
            def generate(self, prompts, tokens):
                gaps = [1.0, 1.0 + 1e-16 * (len(prompts) == 5) + 1e-15 * (len(prompts) == 9)]
                return [answers([7, 8], gaps) if prompt == needle else answers([0, 0], gaps) for prompt in prompts]

        self.assertEqual(greedy_tokens.differing_batches(Engine(), needle, alone, (2, 5, 9)), [9])


class Reference(unittest.TestCase):
    """What the peer's tokens and bf16's error are taken from."""

    def asked(self, model, division=(1, 1), **words):
        """The engines that are started: (backend, options)."""
        asked = []
        options = types.SimpleNamespace(tensor_parallel=division[0], context_parallel=division[1])

        class Check(vllm_check.Check):
            @contextlib.contextmanager
            def engine(self, backend, what="plain", environment=None, **more):
                asked.append((backend, more))
                yield types.SimpleNamespace(generate=lambda **_: [answers([1], [0.5 + len(asked)])])

        with unittest.mock.patch.object(vllm_check, "our_name", lambda: "CUSTOM"):
            Check(model, None, options, None).reference([[1]], **words)
        return asked

    def test_two_backends_differ_by_the_error(self):
        self.assertCountEqual(self.asked("qwen3"), [("FLASH_ATTN", {}), ("TRITON_ATTN", {})])
        self.assertCountEqual(self.asked("deepseek-v2-lite"), [("FLASH_ATTN_MLA", {}), ("TRITON_MLA", {})])

    def test_one_backend_differs_from_itself_by_chunks(self):
        self.assertCountEqual(self.asked("gemma-4"), [("TRITON_ATTN", {}), ("TRITON_ATTN", {"max_num_batched_tokens": 256})])
        words = {"kv_cache_dtype": "fp8", "exact_queries": True}
        self.assertCountEqual(self.asked("llama-3.1", peer="TRITON_ATTN", other="TRITON_ATTN", **words),
                              [("TRITON_ATTN", words), ("TRITON_ATTN", {"max_num_batched_tokens": 256, **words})])

    def test_with_several_gpus_the_peer_s_divided_engine_shows_the_error(self):
        divided = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
        self.assertCountEqual(self.asked("one-kv-head", (2, 2)), [("FLASH_ATTN", {}), ("FLASH_ATTN", divided)])
        for division in ((2, 1), (1, 2)):  # the last is vLLM's to refuse
            words = dict(zip(divided, division))
            self.assertCountEqual(self.asked("one-kv-head", division), [("FLASH_ATTN", {}), ("FLASH_ATTN", words)])


class Chosen(unittest.TestCase):
    def options(self, **changed):
        return types.SimpleNamespace(**{"models": "", "checks": "", "tensor_parallel": 1, "context_parallel": 1, **changed})

    def test_every_model_has_a_check(self):
        found = vllm_check.chosen(self.options())
        self.assertEqual({model for model, _ in found}, set(seeded_models.SHAPES))
        self.assertEqual({check for _, check in found}, set(vllm_check.CHECKS))
        for check in vllm_check.CHECKS:
            self.assertTrue(callable(getattr(vllm_check.Check, check)))
        self.assertEqual(vllm_check.chosen(self.options(checks="ngram")), [("few-tokens", "ngram")])

    def test_what_cannot_be_done_is_refused(self):
        for changed, message in (({"models": "nosuch"}, "there are llama-3.1"), ({"checks": "nosuch"}, "there are tokens"),
                                 ({"models": "qwen3", "checks": "ngram"}, "are not made with --models 'qwen3'"),
                                 ({"checks": "planted", "tensor_parallel": 2}, "--tensor-parallel 2")):
            with self.subTest(changed), self.assertRaisesRegex(Failed, message):
                vllm_check.chosen(self.options(**changed))
        several = vllm_check.chosen(self.options(tensor_parallel=2))
        self.assertEqual({check for _, check in several}, set(vllm_check.CHECKS) - {"planted", "start"})
        self.assertNotIn("dense-sinks", {model for model, _ in several})
        divided = vllm_check.chosen(self.options(tensor_parallel=2, context_parallel=2))
        self.assertEqual({model for model, _ in divided}, {"deepseek-v2-lite", "one-kv-head"})
        with self.assertRaisesRegex(Failed, "--context-parallel 2"):
            vllm_check.chosen(self.options(models="qwen3", context_parallel=2))
        self.assertEqual(matching("a", ["ab", "c"], "--cases"), ["ab"])
        with self.assertRaisesRegex(Failed, "GPUs? (is|are) needed|torch is needed"):
            need_gpu(1000)

    def test_commands_without_what_they_need(self):
        for tool in ("vllm_check.py", "vllm_speed.py"):
            for words, code, message in ((["--help"], 0, ""), (["--jobs" if "check" in tool else "--rounds", "0"], 2, "invalid positive value"),
                                         (["--models" if "check" in tool else "--cases", "nosuch"], 2, "nothing matches 'nosuch'"),
                                         ([], 2, "needed")):
                with self.subTest(tool=tool, words=words):
                    done = subprocess.run([sys.executable, str(TOOLS / tool), *words], capture_output=True, text=True, timeout=60,
                                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=False)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertIn(message, done.stderr)
                    self.assertNotIn("Traceback", done.stderr)


class Timed(unittest.TestCase):
    def test_turns_alternate_and_the_first_counts_nothing(self):
        asked = []

        class Timer:
            def __init__(self, name, times):
                self.name, self.times = name, iter(times)

            def decode(self, steps):
                asked.append(self.name)
                return next(self.times)

        times = vllm_speed.by_turns({"A": Timer("A", [9, 1, 2]), "B": Timer("B", [9, 3, 4])}, "decode", {"steps": 3}, 2)
        self.assertEqual(asked, ["A", "B", "A", "B", "B", "A"])
        self.assertEqual(times, {"A": [1, 2], "B": [3, 4]})

    def test_a_case_is_filled_profiled_and_ended(self):
        asked = []

        class Engine:
            def __getattr__(self, name):
                def call(**words):
                    asked.append((name, words))
                    return {"device": 32.0} if name == "profile" else 0.5
                return call

        case = vllm_speed.Case("decode 2x3", "decode", {"steps": 16}, {"batch": 2, "context": 3}, rounds=0.5, repeats=16)
        times, device = vllm_speed.measured({"peer": Engine()}, case, 3)
        self.assertEqual((times, device), ({"peer": [0.5, 0.5]}, {"peer": {"device": 2.0, "metadata": 0.5}}))
        self.assertEqual([name for name, _ in asked], ["fill", "decode", "decode", "decode", "profile", "metadata", "finish"])
        self.assertEqual(asked[4][1], {"method": "decode", "parts": vllm_speed.PARTS, "steps": 16})

    def test_kernels_of_attention(self):
        names = ["attention_wgmma_bf16", "flash::prepare_varlen", "nvjet_gemm", "reshape_and_cache_flash_kernel", "attnsmith_append"]
        self.assertEqual([bool(re.search(vllm_speed.PARTS["attention"], name)) for name in names], [True, True, False, True, True])
        self.assertTrue(all(re.search(vllm_speed.PARTS["device"], name) for name in names))
        self.assertEqual(vllm_worker.covered([(5, 9), (0, 2), (1, 4), (6, 7)]), 8)

    def test_ratios(self):
        self.assertEqual(vllm_speed.ratios_of({"peer": [4.0, 6.0, 9.0], "attnsmith": [2.0, 6.0, 3.0]}, "attnsmith"),
                         {"median": 2.0, "least": 1.0, "largest": 3.0, "of_least_times": 2.0})
        self.assertAlmostEqual(vllm_speed.geometric_mean([2.0, 0.5]), 1.0)


if __name__ == "__main__":
    unittest.main()
