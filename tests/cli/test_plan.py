"""attnsmith plan."""

import json
import os
import pathlib
import re
import shutil

from support import LLAMA, MODELS, PARTIAL, QUASAR, SMALL, SPARSE, CliTest, main

CONTRACT = ("--op attention --dtype bf16 --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --kv paged "
            "--page-size 16 --q-len 1024 --kv-len 4096 --batch 8").split()


class Plan(CliTest):
    def plan(self, *arguments, **options):
        return self.assert_ok(self.run_cli("plan", *arguments, "--json", **options)).json()

    def test_what_is_not_usual_of_a_call_is_shown(self):
        plan = ["plan", *SMALL, "--sm", "90"]
        usual = self.assert_ok(self.run_cli(*plan)).out
        self.assertNotIn("indices", usual)
        self.assertNotIn("alignment", usual)
        text = self.assert_ok(self.run_cli(*plan, "--index-dtype", "int64", "--alignment", "8")).out
        self.assertRegex(text, r"(?m)^  request .*, int64 indices, alignment 8, ")

    def test_one_plan(self):
        plan = self.plan(*CONTRACT, "--sm", "90")
        self.assert_plan(plan)
        self.assertEqual(plan["device"]["sm"], "90")
        self.assertEqual(plan["request"]["page_size"], 16)
        self.assertTrue(plan["rejected"])
        self.assertNotIn("model", plan)

    def test_flags_and_json_are_one_vocabulary(self):
        by_flags = self.plan(*CONTRACT, "--lse", "--window-left", "511", "--scale", "0.1", "--sm", "90a")
        names = [flag[2:].replace("-", "_") for flag in CONTRACT[::2]]
        values = [int(text) if text.isdigit() else text for text in CONTRACT[1::2]]
        request = dict(zip(names, values), lse=True, window_left=511, scale=0.1, sm=90)
        file = self.write("request.json", json.dumps(request))
        self.assertEqual(self.plan("--request", file), by_flags)
        self.assertEqual(self.plan("--request", "-", stdin=json.dumps(request)), by_flags)
        # Which of the two is meant?
        for word in ("80", "90", "native"):
            self.assert_refused(self.run_cli("plan", "--request", file, "--sm", word), f"--sm cannot be given beside {file}, ")
        # The normalised request is a request.
        again = self.write("again.json", json.dumps(by_flags["request"]))
        self.assertEqual(self.plan("--request", again, "--sm", "90"), by_flags)

    def test_chunks(self):
        """Said in a request and shown in its text; the kernels are those of the mask without."""
        asked = ["--head-dim", "128", "--q-heads", "40", "--kv-heads", "8", "--mask", "causal", "--kv-len", "65536", "--sm",
                 "80,90"]
        plans = self.plan(*asked, "--attention-chunk", "8192")["plans"]
        for plan, plain in zip(plans, self.plan(*asked)["plans"]):
            self.assert_plan(plan)
            self.assertEqual((plan["request"]["attention_chunk"], plain["request"]["attention_chunk"]), (8192, None))
            self.assertEqual(plan["split_kv"], plain["split_kv"])  # shares are of whatever keys there are
        text = self.assert_ok(self.run_cli("plan", *asked, "--attention-chunk", "8192")).out
        self.assertIn(", causal mask, attention_chunk 8192, scale", text)
        self.assertEqual(self.plan(*asked, "--attention-chunk", "0"), self.plan(*asked))
        self.assert_error_line(self.run_cli("plan", *asked, "--attention-chunk", "-1"), 2,
                               "--attention-chunk (attention_chunk): -1 is not accepted")

    def test_how_keys_are_divided(self):
        """In JSON and in words: equal shares for as many CTAs as the device holds, and a workspace of two query tiles
        each, whatever the keys."""
        asked = ["--head-dim", "40", "--q-heads", "32", "--kv-heads", "8", "--batch", "8", "--sm", "90"]
        plans = [self.plan(*asked, "--kv-len", keys) for keys in ("4096", "131072")]
        for plan in plans:
            self.assert_plan(plan)
            split = plan["split_kv"]
            self.assertEqual((split["policy"], [kernel["role"] for kernel in plan["kernels"]]), ("shares", ["attention"]))
            self.assertEqual(split["shares"] % plan["device"]["sm_count"], 0)
            self.assertTrue(plan["kernels"][0]["grid"].startswith(f"{split['shares']} CTAs"))
            rows = 2 * split["shares"] * plan["kernels"][0]["tile_q"]
            self.assertEqual(split["workspace_bytes"], 8192 + rows * (40 + 2) * 4)
        text = self.assert_ok(self.run_cli("plan", *asked, "--kv-len", "4096")).out
        self.assertRegex(text, r"(?m)^  KV split  equal shares for %d CTAs, workspace \d+\.\d MiB$"
                         % plans[0]["split_kv"]["shares"])
        whole = ["plan", "--head-dim", "40", "--q-heads", "32", "--batch", "64", "--q-len", "4096", "--kv-len", "4096",
                 "--sm", "90"]
        self.assertRegex(self.assert_ok(self.run_cli(*whole)).out, r"(?m)^  KV split  none$")

    def test_a_merge(self):
        plans = self.plan("--op", "merge", "--dtype", "fp16", "--head-dim", "128", "--q-heads", "32", "--lse", "--q-len",
                          "100", "--sm", "all")["plans"]
        for plan in plans:
            self.assert_plan(plan)
            self.assertEqual([kernel["role"] for kernel in plan["kernels"]], ["merge"])
            self.assertEqual(plan["request"]["op"], "merge")
            self.assertNotIn("kv_heads", plan["request"])
        request = self.write("request.json", json.dumps(plans[0]["request"]))
        self.assertEqual(self.plan("--request", request, "--sm", "80"), plans[0])
        text = self.assert_ok(self.run_cli("plan", "--request", request, "--sm", "90")).out
        self.assertIn("merge of fp16 states, head_dim 128, 32 query heads, lse; batch 1, q_len 100", text)

    def test_same_bytes_each_time(self):
        first = self.run_cli("plan", *CONTRACT, "--sm", "89", "--json")
        for _ in range(4):  # each process lies at other addresses: no order made by them may show
            self.assertEqual(self.run_cli("plan", *CONTRACT, "--sm", "89", "--json"), first)

    def test_several_sms(self):
        sms = [str(sm) for sm in reversed(self.known_sms())]
        plans = self.plan(*SMALL, "--sm", ",".join(sms))
        self.assertEqual(plans["schema"], "attnsmith.plans/1")
        self.assertEqual([plan["device"]["sm"] for plan in plans["plans"]], sms)
        for plan in plans["plans"]:
            self.assert_plan(plan)

    def test_models(self):
        for file in sorted(MODELS.glob("*.json")):
            with self.subTest(model=file.name):
                result = self.run_cli("plan", "--model", file, "--sm", "all", "--json")
                plans = result.json()
                self.assertEqual(result.code, 1 if plans["unsupported"] else 0, result.err)
                self.assertTrue(plans["plans"])
                for plan in plans["plans"]:
                    self.assert_plan(plan)
                    self.assertIn(plan["model"]["phase"], ("prefill", "decode"))
                    self.assertGreater(plan["model"]["layers"], 0)
                names = [(plan["model"]["name"], plan["device"]["sm"]) for plan in plans["plans"]]
                self.assertEqual(len(names), len(set(names)))

    def test_a_part_that_is_not_supported(self):
        result = self.run_cli("plan", "--model", PARTIAL, "--sm", "90", "--json")
        self.assert_failed(result, "1 part is not supported", "full_attention/decode")
        plans = result.json()
        self.assertEqual([part["name"] for part in plans["unsupported"]], ["full_attention/decode"])
        self.assertTrue(plans["unsupported"][0]["reason"])
        dims = [(plan["request"]["head_dim_qk"], plan["request"]["head_dim_vo"]) for plan in plans["plans"]]
        self.assertEqual(dims, [(192, 128)])

        self.assert_ok(self.run_cli("plan", "--model", PARTIAL, "--sm", "90", "--allow-unsupported"))

    def test_a_note_is_said_once_for_each_model(self):
        config = json.loads((MODELS / "gemma-2-9b.json").read_text())
        del config["torch_dtype"]
        paths = [self.write(name, json.dumps(config)) for name in ("one.json", "two.json")]
        text = self.assert_ok(self.run_cli("plan", "--model", paths[0], "--model", paths[1], "--sm", "80,90")).out
        self.assertEqual(text.count("dtype is not given: planned as bf16"), 2)

    def test_the_size_of_a_config_file(self):
        config = self.write("config.json", json.dumps({**json.loads((MODELS / "llama-3.1-8b.json").read_text()),
                                                       "quantization_config": {"ignore": ["x" * 100] * 31000}}))
        self.assert_ok(self.run_cli("plan", "--model", config, "--sm", "90"))
        large = self.write("large.json", pathlib.Path(config).read_text() + " " * (20 << 20))
        self.assert_refused(self.run_cli("plan", "--model", large, "--sm", "90"),
                            f"has {os.path.getsize(large)} bytes; a config.json may have 16777216")

    def test_an_indexer_that_selects_all_keys(self):
        """Dense attention is planned where it is the same, and said; beyond it the refusal names the way out."""
        config = self.write("sparse.json", json.dumps(SPARSE))
        result = self.run_cli("plan", "--model", config, "--sm", "90", "--json")
        self.assert_failed(result, "1 part is not supported", "full_attention")
        self.assertEqual(result.json()["plans"], [])
        reason = result.json()["unsupported"][0]["reason"]
        self.assertIn("index_topk is 2048, and kv_len 4096 is more", reason)
        most = re.search(r"a kv_len of up to (\d+) is planned", reason)
        plans = self.plan("--model", config, "--sm", "90", "--kv-len", most[1])
        self.assertEqual([plan["request"]["op"] for plan in plans["plans"]], ["attention", "mla"])
        self.assertEqual(plans["unsupported"], [])
        condition = "right only while a sequence has at most 2048 keys"
        for plan in plans["plans"]:
            self.assert_plan(plan)
            self.assertEqual(sum(condition in note for note in plan["model"]["notes"]), 1)
        self.assertEqual([(one["kind"], one["field"]) for one in plans["warnings"]], [("approximated", "index_topk")])
        text = self.assert_ok(self.run_cli("plan", "--model", config, "--sm", "90", "--kv-len", "2048")).out
        self.assertEqual(text.count(condition), 2)  # a note of the model, and a warning

    def test_ways_to_name_sms(self):
        expected = self.plan(*SMALL, "--sm", "90")
        for spelling in ("sm_90", "9.0", "90a", "sm_90a"):
            self.assertEqual(self.plan(*SMALL, "--sm", spelling), expected)
        result = self.run_cli("plan", *SMALL, "--sm", "100f", "--json")
        self.assertEqual((result.code, result.json()["device"]["sm"]), (0, "100"))
        self.assertRegex(result.err, r'^attnsmith: warning: sm "100f" is taken as 100: .*\n$')
        request = self.write("request.json", json.dumps({"head_dim": 64, "q_heads": 8, "sm": "90b"}))
        self.assertIn('"90b" is taken as 90', self.run_cli("plan", "--request", request).err)
        self.assertEqual([plan["device"]["sm"] for plan in self.plan(*SMALL, "--sm", "all")["plans"]],
                         [str(sm) for sm in self.known_sms()])
        self.assert_refused(self.run_cli("plan", *SMALL, "--sm", "native"), "--sm: native is not accepted", "no GPU is present")
        self.assert_refused(self.run_cli("plan", *SMALL), "--sm is missing", "no GPU is present")

    def test_notes_are_of_the_layers_that_they_speak_of(self):
        llama4 = self.write("llama4.json", json.dumps({
            "model_type": "llama4_text", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 4}))
        text = self.assert_ok(self.run_cli("plan", "--model", llama4, "--sm", "90")).out
        for part in re.split(r"\n\n", text):
            name = part.partition(",")[0]
            if name.endswith(("/prefill", "/decode")):
                self.assertEqual("multiply q by" in part, name.startswith("full_attention/prefill"), part)
        self.assertEqual(text.count("multiply q by"), 1)

    def test_strict(self):
        self.assertEqual(self.plan("--model", LLAMA, "--sm", "90", "--strict")["warnings"], [])
        quasar = self.write("quasar.json", json.dumps(QUASAR))
        plans = self.plan("--model", quasar, "--sm", "90")
        self.assertEqual([(one["kind"], one["field"]) for one in plans["warnings"]],
                         [("unread_field", "kv_bend"), ("unknown_type", "model_type")])
        result = self.run_cli("plan", "--model", quasar, "--sm", "90", "--strict", "--json")
        self.assert_failed(result, "2 warnings count under --strict", "model_type", "kv_bend")
        self.assertEqual(result.json(), plans)
        text = self.assert_ok(self.run_cli("plan", "--model", quasar, "--sm", "90")).out
        self.assertIn("warning  kv_bend: ", text)
        self.assert_refused(self.run_cli("plan", *SMALL, "--sm", "90", "--strict"), "--strict is for --model")

    def test_what_a_config_leaves_open(self):
        plans = self.plan("--model", LLAMA, "--sm", "90", "--dtype", "fp16", "--kv", "dense", "--batch", "3", "--q-len",
                          "17", "--kv-len", "99", "--tensor-parallel", "4", "--index-dtype", "int64", "--alignment",
                          "8", "--lse")["plans"]
        self.assertTrue(all(plan["request"]["lse"] and plan["request"]["alignment"] == 8 for plan in plans))
        prefill, decode = (plan["request"] for plan in plans)
        self.assertEqual((prefill["dtype"], prefill["kv"], prefill["batch"], prefill["q_len"], prefill["kv_len"],
                          prefill["q_heads"], prefill["kv_heads"], prefill["index_dtype"]),
                         ("fp16", "dense", 3, 17, 99, 8, 2, "int64"))
        self.assertEqual(decode["q_len"], 1)

    def test_a_model_folder(self):
        shutil.copy(LLAMA, self.folder / "config.json")
        expected = self.plan("--model", LLAMA, "--sm", "90")
        self.assertEqual(self.plan("--model", ".", "--sm", "90"), expected)
        with open(LLAMA, encoding="utf-8") as file:
            self.assertEqual(self.plan("--model", "-", "--sm", "90", stdin=file.read()), expected)

    def test_text(self):
        text = self.assert_ok(self.run_cli("plan", *CONTRACT, "--sm", "90")).out
        for word in ("mma", "sm_90", "KV split", "rejected", "miss", "registers", "4096"):
            self.assertIn(word, text)
        self.assertNotIn("\x1b", text)
        text = self.assert_ok(self.run_cli("plan", "--model", LLAMA, "--sm", "80,90")).out
        self.assertEqual(text.count("full_attention/decode"), 2)

    def test_sizes_that_are_not_given(self):
        attention = ("--head-dim", "128", "--q-heads", "8", "--sm", "90")
        note = "  note      planned for 1 sequence of 1 query and 1 key, as no sizes are given: add --batch, --q-len and --kv-len\n"
        text = self.assert_ok(self.run_cli("plan", *attention)).out
        self.assertTrue(text.startswith(note + "  request "), text)
        request = self.write("request.json", json.dumps({"head_dim": 128, "q_heads": 8}))
        self.assertIn(note, self.assert_ok(self.run_cli("plan", "--request", request, "--sm", "80,90")).out)
        self.assertNotIn(note, self.assert_ok(self.run_cli("plan", *attention, "-q")).out)
        for sizes in (["--kv-len", "1"], ["--batch", "2"], ["--q-len", "7"]):
            self.assertNotIn(note, self.assert_ok(self.run_cli("plan", *attention, *sizes)).out)
        self.assertNotIn(note, self.assert_ok(self.run_cli("plan", "--op", "merge", *attention)).out)
        self.assertNotIn(note, self.assert_ok(self.run_cli("plan", "--model", LLAMA, "--sm", "90")).out)

    def test_how_much_is_said(self):
        """-q leaves the reasons out, -v has them for a list, too; neither changes JSON."""
        quasar = self.write("quasar.json", json.dumps({**QUASAR, "attention_dropout": 0.5}))
        asked = ["plan", "--model", quasar, "--kv", "paged,dense", "--page-size", "16", "--sm", "90"]
        usual, quiet, verbose = (self.assert_ok(self.run_cli(*asked, *flags)).out for flags in ([], ["-q"], ["-v"]))
        self.assertEqual(self.run_cli(*asked, "-vv").out, verbose)
        for line in ("  rejected  ", "warning  kv_bend: ", "skipped  page_size with kv dense"):
            self.assertIn(line, usual)
            self.assertIn(line, verbose)
            self.assertNotIn(line, quiet)
        self.assertRegex(usual, r"  rejected  \d+ candidates; -v or --json has the reasons\n")
        self.assertNotIn("has the reasons", verbose)
        self.assertIn("  rejected  wgmma: head dims 8 and 8: its tiles are made for 64 and more\n", verbose)
        self.assertIn("kernel", quiet)
        one = ["plan", *SMALL, "--sm", "90"]
        self.assertNotIn("rejected", self.assert_ok(self.run_cli(*one, "-q")).out)
        self.assertEqual(self.plan(*SMALL, "--sm", "90", "-q"), self.plan(*SMALL, "--sm", "90"))

    def test_numbers_in_words(self):
        one = self.write("one.json", json.dumps(QUASAR))
        self.assertIn("full_attention/decode, 1 layer\n", self.run_cli("plan", "--model", one, "--sm", "90").out)
        self.assertIn("full_attention/decode, 32 layers\n", self.run_cli("plan", "--model", LLAMA, "--sm", "90").out)
        text = self.assert_ok(self.run_cli("plan", *SMALL, "--scale", "0.125", "--sm", "90")).out
        self.assertIn("causal mask, scale 0.125, dense KV", text)
        text = self.run_cli("plan", *SMALL, "--o-dtype", "float32", "--sm", "90").out
        self.assertIn("bf16, head_dim 16,", text)
        self.assertIn(", o_dtype fp32, dense KV", text)
        self.assertIn(" to fp32", text)
        self.assertIn("mask, scale 0.0883883, paged", self.run_cli("plan", "--model", LLAMA, "--sm", "90").out)

    def test_without_sm_and_gpu(self):
        self.assert_refused(self.run_cli("plan", *SMALL), "sm", "no GPU is present")

    def test_cache_state(self):
        self.prewarm_small("kernels")
        for kernel in self.plan(*SMALL, "--sm", "90", "--cache", "kernels")["kernels"]:
            self.assertEqual(kernel["cache"]["state"], "hit")
            compiled, predicted = kernel["resources"]["compiled"], kernel["resources"]["predicted"]
            self.assertEqual(compiled["shared_bytes"], predicted["shared_bytes"])
            self.assertEqual(compiled["spill_bytes"], 0)
        text = self.run_cli("plan", *SMALL, "--sm", "90", "--cache", "kernels").out
        self.assertRegex(text, r"hit \(\d+\.\d+\.\d+\)")


if __name__ == "__main__":
    main()
