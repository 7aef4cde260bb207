"""Words with several values, several models, and recorded files: everything that a program will run, at once."""

import json
import shlex
import subprocess

from support import BINARY, LLAMA, MODELS, PARTIAL, CliTest, FakeGpuTest, main

MERGE = ["--op", "merge", "--head-dim", "64", "--q-heads", "8"]  # one kernel, quick to compile
TINY = ["--head-dim", "8", "--q-heads", "1"]


def record(**request):
    return json.dumps({"schema": "attnsmith.recorded/1", "request": request}) + "\n"


RECORDED = record(op="merge", head_dim=64, q_heads=8)


class Lists(CliTest):
    def plans(self, *words):
        return self.assert_ok(self.run_cli("plan", *words, "--sm", "90", "--json")).json()

    def test_plans_of_a_model(self):
        listed = self.plans("--model", LLAMA, "--kv", "paged,dense", "--page-size", "16,64", "--index-dtype",
                            "int32,int64", "--alignment", "16,8", "--lse", "off,on")
        self.assertEqual(listed["schema"], "attnsmith.plans/1")
        names = [plan["model"]["name"] for plan in listed["plans"]]
        self.assertEqual((len(names), len(set(names))), (2 * 3 * 2 * 2 * 2,) * 2)
        for plan in listed["plans"]:
            self.assert_plan(plan)
            for word in ("kv", "index_dtype", "alignment"):
                self.assertIn(f"{word} {plan['request'][word]}", plan["model"]["name"])
        self.assertEqual(listed["skipped"], [{"name": "page_size with kv dense", "reason": "only paged KV has pages"}])

    def test_plans_of_a_request(self):
        listed = self.plans(*TINY, "--kv", "dense,ragged", "--lse", "on,off")
        self.assertEqual([(plan["request"]["kv"], plan["request"]["lse"]) for plan in listed["plans"]],
                         [("dense", True), ("ragged", True), ("dense", False), ("ragged", False)])
        self.assertEqual(self.plans(*TINY, "--kv", "dense")["schema"], "attnsmith.plan/1")
        self.assertTrue(self.plans(*TINY, "--lse", "on")["request"]["lse"])
        text = self.assert_ok(self.run_cli("plan", *TINY, "--kv", "paged,dense", "--page-size", "16", "--sm", "90"))
        self.assertIn("skipped  page_size with kv dense: only paged KV has pages\n", text.out)

    def test_types_of_o(self):
        listed = self.plans(*TINY, "--dtype", "bf16,fp16", "--o-dtype", "bf16,fp16,fp32")
        self.assertEqual([(plan["request"]["dtype"], plan["request"]["o_dtype"]) for plan in listed["plans"]],
                         [("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "fp16"), ("fp16", "fp32")])
        self.assertEqual([part["name"] for part in listed["skipped"]],
                         ["o_dtype fp16 with dtype bf16", "o_dtype bf16 with dtype fp16"])
        model = self.plans("--model", LLAMA, "--o-dtype", "fp32")
        self.assertEqual({plan["request"]["o_dtype"] for plan in model["plans"]}, {"fp32"})
        for plan in model["plans"]:
            self.assert_plan(plan)
            for kernel in plan["kernels"]:
                self.assertRegex(kernel["name"], " to fp32|^merge fp32")

    def test_a_file_of_a_request(self):
        file = self.write("request.json", json.dumps({"head_dim": 8, "q_heads": 1, "kv": ["dense", "ragged"], "sm": 80}))
        listed = self.assert_ok(self.run_cli("plan", "--request", file, "--json")).json()
        self.assertEqual([(plan["request"]["kv"], plan["device"]["sm"]) for plan in listed["plans"]],
                         [("dense", "80"), ("ragged", "80")])

    def test_what_nothing_serves_is_listed(self):
        result = self.run_cli("plan", "--model", LLAMA, "--consistency", "default,bitwise", "--precision",
                              "high", "--sm", "90", "--json")
        self.assert_failed(result, "consistency bitwise")
        self.assertEqual([plan["model"]["name"] for plan in result.json()["plans"]],
                         ["full_attention/prefill (consistency standard)", "full_attention/decode (consistency standard)"])
        self.assertEqual([part["name"] for part in result.json()["unsupported"]],
                         ["full_attention/prefill (consistency bitwise)", "full_attention/decode (consistency bitwise)"])

    def test_several_models(self):
        gemma = str(MODELS / "gemma-2-9b.json")
        result = self.run_cli("plan", "--model", LLAMA, "--model", PARTIAL, gemma, "--sm", "90", "--json")
        self.assert_failed(result, "latent-500/full_attention/decode")
        names = {plan["model"]["name"] for plan in result.json()["plans"]}
        self.assertLessEqual({"llama-3.1-8b/full_attention/decode", "gemma-2-9b/sliding_attention/prefill"}, names)

    def test_prewarm_builds_equal_kernels_once(self):
        words = ["prewarm", *TINY, "--sm", "80", "--cache", "kernels", "--json"]
        one = self.assert_ok(self.run_cli(*words)).json()["summary"]
        # These are arguments of a launch: the kernels are there.
        same = self.assert_ok(self.run_cli(*words, "--lse", "off,on", "--kv", "dense,ragged")).json()["summary"]
        self.assertEqual((same["hits"], same["total"]), (one["total"], one["total"]))
        more = self.assert_ok(self.run_cli(*words, "--index-dtype", "int32,int64")).json()["summary"]
        self.assertEqual((more["hits"], more["total"]), (one["total"], 2 * one["total"]))

    def test_export_takes_lists(self):
        self.assert_ok(self.run_cli("prewarm", *MERGE, "--sm", "80", "--cache", "kernels", "--json"))
        result = self.run_cli("cache", "export", "--cache", "kernels", "--model", LLAMA, "--kv", "paged,dense", "-o", "b")
        self.assert_failed(result, "no kernels of the model")

    def test_bad_lists(self):
        plan = ["plan", "--sm", "90"]
        self.assert_refused(self.run_cli(*plan, *TINY, "--kv", "dense,sparse"), "kv", "sparse")
        self.assert_refused(self.run_cli(*plan, *TINY, "--kv", "dense,"), "kv")
        self.assert_refused(self.run_cli(*plan, *TINY, "--lse", "off,"), "lse")
        self.assert_refused(self.run_cli(*plan, *TINY, "--alignment", "16,x"), "alignment")
        self.assert_refused(self.run_cli(*plan, *TINY, "--page-size", "16,64"), "page_size")
        self.assert_refused(self.run_cli(*plan, *TINY, "--mask", "full,causal"), "mask")
        self.assert_refused(self.run_cli(*plan, "--model", LLAMA, "--batch", "1,2"), "batch")
        self.assert_refused(self.run_cli(*plan, "--model", LLAMA, "--head-dim", "64"), "--head-dim", "--model")
        # Commands that work on one of each.
        self.assert_refused(self.run_cli("check", "--model", LLAMA, "--kv", "paged,dense"), "kv")


class Recorded(CliTest):
    def prewarm(self, *words):
        return self.run_cli("prewarm", *words, "--sm", "80,90", "--cache", "kernels", "--json")

    def test_exactly_what_is_recorded_for_any_sm(self):
        file = self.write("recorded", RECORDED + RECORDED + record(op="merge", head_dim=72, q_heads=8))
        report = self.assert_ok(self.prewarm("--recorded", file)).json()
        self.assertEqual((report["summary"]["compiled"], report["summary"]["total"]), (4, 4))
        self.assertEqual({kernel["sm"] for kernel in report["kernels"]}, {80, 90})
        again = self.assert_ok(self.prewarm("--recorded", file, "--recorded", self.write("other", RECORDED))).json()
        self.assertEqual(again["summary"]["hits"], 4)
        self.assertEqual(self.assert_ok(self.prewarm(*MERGE, "--recorded", file)).json()["summary"]["total"], 4)
        from_input = self.run_cli("prewarm", "--recorded", "-", "--sm", "90", "--cache", "kernels", "--json",
                                  stdin=RECORDED)
        self.assertEqual(self.assert_ok(from_input).json()["summary"]["hits"], 1)

    def test_from_the_pipe_of_a_slow_command(self):
        self.prewarm("--recorded", self.write("recorded", RECORDED))
        script = f"""'{BINARY}' prewarm --recorded <(sleep 0.3; cat recorded) --sm 90 --cache kernels --json"""
        process = subprocess.Popen(["bash", "-c", script], cwd=self.folder, env=self.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(self.assert_ok(self.finish(process)).json()["summary"]["hits"], 1)

    def test_what_nothing_serves_is_listed_by_its_line(self):
        file = self.write("recorded", RECORDED + record(head_dim=8, q_heads=1, consistency="bitwise",
                                                          precision="high"))
        result = self.prewarm("--recorded", file)
        self.assert_failed(result, f"{file}:2")
        self.assertEqual((result.json()["summary"]["compiled"], len(result.json()["unsupported"])), (2, 2))

    def test_a_torn_line_is_said_and_skipped(self):
        file = self.write("recorded", RECORDED + RECORDED[:70])
        report = self.assert_ok(self.prewarm("--recorded", file)).json()
        self.assertEqual(report["summary"]["compiled"], 2)
        self.assertEqual([part["name"] for part in report["skipped"]], [f"{file}:2"])
        text = self.run_cli("prewarm", "--recorded", file, "--sm", "80", "--cache", "kernels")
        self.assertIn(f"skipped  {file}:2: the line is torn", text.out)

    def test_files_that_are_wrong(self):
        for text, *words in (("", "without a whole record"), ("{}\n", ":1: schema"),
                             (RECORDED + record(head_dim=-8, q_heads=1), ":2: head_dim"),
                             (RECORDED + record(head_dim=8, q_heads=1, sm=90), ":2: sm")):
            file = self.write("recorded", text)
            self.assert_refused(self.prewarm("--recorded", file), file, *words)
        self.assert_refused(self.prewarm("--recorded", "nowhere"), "nowhere", "cannot be read")
        self.assert_refused(self.prewarm(), "--recorded FILE")
        # A word of a request beside it is no filter.
        file = self.write("recorded", RECORDED)
        self.assert_refused(self.prewarm("--recorded", file, "--kv", "paged"), "head_dim is missing",
                            "--kv beside --recorded begins a request of its own")
        self.assertNotIn("beside", self.run_cli("prewarm", "--kv", "paged", "--sm", "90").err)


class OnMiss(FakeGpuTest):
    def test_the_command_of_a_miss_cures_it(self):
        env = {"ATTNSMITH_ON_MISS": "error", "ATTNSMITH_NVRTC_PATH": "/nowhere", "ATTNSMITH_CACHE_DIR": "ker nels"}
        model = self.write("config.json", json.dumps({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
                                                      "num_attention_heads": 1, "torch_dtype": "bfloat16"}))
        asked = ["check", "--model", model, "--filter", "decode", "--cache", "ker nels", "--json"]
        cases = self.run_cli(*asked, env=env).json()["cases"]
        for case in cases:
            self.assertIn("and on_miss is error; build it with: ", case["detail"])
        command = shlex.split(cases[0]["detail"].partition("build it with: ")[2].splitlines()[0])
        self.assertEqual(command[:2], ["attnsmith", "prewarm"])
        # Whatever a miss is for those who serve, prewarm compiles.
        self.assert_ok(self.run_cli(*command[1:], "--json", env={"ATTNSMITH_ON_MISS": "error"}))
        for case in self.run_cli(*asked, env=env).json()["cases"]:
            self.assertNotIn("on_miss", case["detail"])
        self.run_cli(*asked, "--dtype", "fp16", env=env)
        stat = self.assert_ok(self.run_cli("cache", "stat", "--cache", "ker nels", "--json")).json()
        self.assertGreater(stat["counters"]["miss_errors"], 0)
        self.assertIn(f"{stat['counters']['miss_errors']} errors",
                      self.run_cli("cache", "stat", "--cache", "ker nels").out)

    def test_a_variable_that_is_wrong(self):
        result = self.run_cli("doctor", env={"ATTNSMITH_ON_MISS": "fail"})
        self.assertIn("ATTNSMITH_ON_MISS", result.out + result.err)
        self.assert_refused(self.run_cli("plan", *TINY, "--sm", "90", env={"ATTNSMITH_ON_MISS": "fail"}),
                            "ATTNSMITH_ON_MISS", "compile or error")


if __name__ == "__main__":
    main()
