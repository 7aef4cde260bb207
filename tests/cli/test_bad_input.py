"""Bad input: one clear line that names the field, exit code 2, and nothing compiled."""

import json
import os

from support import LLAMA, SMALL, CliTest, main

HEADS = ["--q-heads", "8"]

# Flags, and what the error must name.
BAD_FLAGS = [
    (["--head-dim", "0", *HEADS], "head_dim"),
    (["--head-dim", "-8", *HEADS], "head_dim"),
    (["--head-dim", "99999999999999999999", *HEADS], "head_dim"),
    (["--head-dim", "64.5", *HEADS], "head_dim"),
    (["--head-dim", "sixty", *HEADS], "head_dim"),
    (["--head-dim", "0x40", *HEADS], "head_dim"),
    (["--head-dim", "", *HEADS], "head_dim"),
    (["--head-dim-qk", "192", "--head-dim-vo", "-7", *HEADS], "head_dim_vo"),
    (["--head-dim", "64", "--head-dim-qk", "64", *HEADS], "head_dim_qk"),
    (["--q-heads", "8"], "head_dim"),
    (["--head-dim", "64"], "--q-heads (q_heads) is missing"),
    (["--head-dim", "64", "--q-heads", "0"], "q_heads"),
    (["--head-dim", "64", "--q-heads", "-1"], "q_heads"),
    (["--head-dim", "64", "--q-heads", "8", "--kv-heads", "3"], "kv_heads"),
    (["--head-dim", "64", "--q-heads", "8", "--kv-heads", "0"], "kv_heads"),
    ([*SMALL, "--dtype", "fp64"], "dtype"),
    ([*SMALL, "--dtype", "bf16\"; #include <evil>"], "dtype"),
    (["--head-dim", "64", *HEADS, "--mask", "casual"], "--mask: ", "full or causal (did you mean causal?)"),
    ([*SMALL, "--cache-trust", "grup"], "--cache-trust: ", "owner, group or all (did you mean group?)"),
    ([*SMALL, "--toolchain", "exakt"], "--toolchain: ", "newest or exact (did you mean exact?)"),
    ([*SMALL, "--window-left", "-2"], "window_left"),
    ([*SMALL, "--scale", "nan"], "scale"),
    ([*SMALL, "--scale", "-1"], "scale"),
    ([*SMALL, "--softcap", "-1"], "softcap"),
    ([*SMALL, "--kv", "paged"], "page_size"),
    ([*SMALL, "--kv", "paged", "--page-size", "0"], "--page-size (page_size): 0 is not accepted"),
    ([*SMALL, "--kv", "paged", "--page-size", "-16"], "--page-size (page_size): -16 is not accepted"),
    ([*SMALL, "--page-size", "16"], "page_size"),
    ([*SMALL, "--index-dtype", "int8"], "index_dtype"),
    ([*SMALL, "--o-dtype", "fp16"], "o_dtype"),
    ([*SMALL, "--kv-dtype", "fp16"], "kv_dtype"),
    ([*SMALL, "--kv-scale", "head"], "kv_scale"),
    ([*SMALL, "--dtype", "fp16", "--o-dtype", "bf16"], "o_dtype"),
    (["--op", "merge", "--head-dim", "64", "--q-heads", "8", "--o-dtype", "fp32"], "o_dtype"),
    ([*SMALL, "--alignment", "3"], "alignment"),
    ([*SMALL, "--batch", "0"], "batch"),
    ([*SMALL, "--kv-len", "9223372036854775807"], "kv_len"),
    ([*SMALL, "--lse=maybe"], "lse"),
    ([*SMALL, "--sm", "91"], "sm"),
    ([*SMALL, "--sm", "75"], "sm"),
    ([*SMALL, "--sm", "90,"], "sm"),
    ([*SMALL, "--sm", "sm_91"], "sm"),
    ([*SMALL, "--sm", "native,90"], "native alone"),
    ([*SMALL, "-q", "-v"], "--quiet cannot be given beside --verbose"),
    ([*SMALL, "--op", "atention"], "op"),
    ([*SMALL, "--op", "merge"], "mask"),
    (["--op", "merge", "--head-dim", "64", *HEADS, "--kv-heads", "8"], "kv_heads"),
    (["--op", "merge", "--head-dim", "-12", *HEADS], "head_dim"),
    (["--op", "merge", *HEADS], "head_dim"),
    ([*SMALL, "--head-dim", "64"], "--head-dim is given twice"),
    ([*SMALL, "--sm", "90", "--sm", "80"], "--sm is given twice"),
    ([*SMALL, "--json", "--json"], "--json is given twice"),
    ([*SMALL, "--json=false"], "--json takes no value"),
    ([*SMALL, "--json=true"], "--json takes no value"),
    ([*SMALL, "--pagesize", "16"], "did you mean --page-size?"),
    ([*SMALL, "--q-head=3"], "did you mean --q-heads?"),
    ([*SMALL, "128"], "\"128\""),
    ([*SMALL, "--page-size"], "--page-size"),
    ([*SMALL, "--page-size="], "--page-size"),
    ([*SMALL, "--tensor-parallel", "2"], "--tensor-parallel"),
    ([*SMALL, "--model", LLAMA], "--head-dim"),
    (["--model", LLAMA, "--request", LLAMA], "--request"),
    (["--model", LLAMA, "--tensor-parallel", "0"], "tensor-parallel"),
    (["--model", LLAMA, "--tensor-parallel", "7"], f"{LLAMA}: --tensor-parallel (tensor_parallel): 7 "),
    (["--model", LLAMA, "--page-size", "0"], f"{LLAMA}: --page-size (page_size): 0 is not accepted"),
    (["--model", LLAMA, "--dtype", "fp64"], "--dtype: \"fp64\""),
    ([*SMALL, "--cache", ""], "cache"),
    ([], "nothing is asked for"),
]

GOOD = {"head_dim": 64, "q_heads": 8}
# Requests as JSON text, and what the error must name.
BAD_REQUESTS = [
    ("", "request"),
    ("   ", "request"),
    ("{", "request"),
    ("[]", "request"),
    ("null", "request"),
    ("{\"head_dim\": 64,}", "request"),
    ("{\"head_dim\": 64, \"head_dim\": 64, \"q_heads\": 8}", "head_dim"),
    ("{'head_dim': 64}", "request"),
    ("[" * 100000, "request"),
    ("{\"a\":" * 100 + "1" + "}" * 100, "request"),
    (b"\xff\xfe{}", "request"),
    (b"{\"head_dim\": 64, \"q_heads\": 8, \"dtype\": \"\xff\"}", "request"),
    (" " * (5 << 20), "request"),
    (json.dumps({**GOOD, "head_dim": -7}), "head_dim"),
    (json.dumps({**GOOD, "head_dim": "64"}), "head_dim"),
    (json.dumps({**GOOD, "head_dim": 64.0}), "head_dim"),
    (json.dumps({**GOOD, "head_dim": True}), "head_dim"),
    (json.dumps({**GOOD, "head_dim": None}), "head_dim"),
    (json.dumps({**GOOD, "head_dim": 10**30}), "head_dim"),
    (json.dumps({**GOOD, "q_heads": [8]}), "q_heads"),
    (json.dumps({**GOOD, "kv_heads": 3}), "kv_heads"),
    (json.dumps({**GOOD, "lse": 1}), "lse"),
    (json.dumps({**GOOD, "mask": 1}), "mask"),
    (json.dumps({**GOOD, "scale": "0.1"}), "scale"),
    (json.dumps({**GOOD, "page_sise": 16}), "page_size (did you mean that?)"),
    (json.dumps({**GOOD, "line\nbreak": 16}), "unknown field"),
    (json.dumps({**GOOD, "sm": [90, 91]}), "sm"),
    (json.dumps({**GOOD, "sm": {"90": 1}}), "sm"),
]

# A config.json, and what the error must name.
BAD_CONFIGS = [
    ("", "config.json"),
    ("{}", "heads"),
    ("[]", "config.json"),
    ("{\"model_type\": \"mamba\", \"hidden_size\": 768}", "model_type"),
    ("{\"model_type\": \"llama\", \"hidden_size\": 4096}", "heads"),
    ("{\"model_type\": \"llama\", \"hidden_size\": \"x\", \"num_attention_heads\": 32}", "hidden_size"),
    ("{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_attention_heads\": 0}", "num_attention_heads"),
    ('{"model_type": "gemma2", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2, '
     '"attn_logit_softcapping": 1e300}', "attn_logit_softcapping: 1e+300 is not accepted"),
]


class BadInput(CliTest):
    def test_what_is_said_of_fields(self):
        plan = ["plan", "--q-heads", "8", "--sm", "90"]
        for flags, words in (
                (["--head-dim", "64", "--head-dim-vo", "32"],
                 ["--head-dim-vo (head_dim_vo): 32 is not accepted; expected nothing beside head_dim"]),
                (["--head-dim", "64", "--kv", "paged", "--page-size", "0"], ["--page-size (page_size): 0 is not accepted"]),
                (["--head-dim", "64", "--kv", "paged", "--page-size", "16,32,0"], ["page_size", "0 is not accepted"]),
                (["--head-dim", "64", "--kv", "paged"], ["page_size", "is missing"]),
                (["--head-dim", "64", "--tuning", ""], ['"": cannot be read: No such file'])):
            with self.subTest(flags=flags):
                self.assert_refused(self.run_cli(*plan, *flags), *words)

    def test_suggestions_are_near(self):
        self.assert_refused(self.run_cli("cache", "ls", "--jsn"), "did you mean --json?")
        refused = self.run_cli("help", "--json")
        self.assert_error_line(refused, 2, "--json: help has no such flag")
        self.assertNotIn("did you mean", refused.err)

    def test_flags(self):
        for flags, *words in BAD_FLAGS:
            for command in ("plan", "prewarm"):
                with self.subTest(command=command, flags=flags):
                    sm = [] if "--sm" in flags else ["--sm", "90"]
                    self.assert_refused(self.run_cli(command, *flags, *sm), *words)
        self.assertFalse((self.folder / "home").exists(), "a bad request made the cache")

    def test_what_is_not_supported(self):
        """Meaningful, and not among the kernels: exit code 1, with what there is."""
        combined = [*SMALL, "--precision", "high", "--consistency", "bitwise"]
        for flags, words in ((["--head-dim", "7", *HEADS], ("head_dim 7 is not supported; ", "the next is 8")),
                             (["--head-dim", "520", *HEADS], ("head_dim 520 is not supported; ", "up to 512\n")),
                             (["--head-dim-qk", "576", "--head-dim-vo", "512", *HEADS], ("head_dim_qk 576 is not supported",)),
                             (["--op", "merge", "--head-dim", "12", *HEADS], ("head_dim 12 is not supported", "16")),
                             ([*SMALL, "--dtype", "fp32"], ("dtype fp32 is not supported", "fp16 and bf16\n")),
                             ([*SMALL, "--dtype", "e4m3"], ("dtype e4m3 is not supported", "kv_dtype e4m3")),
                             (combined, ("precision and consistency are not supported together on sm_90; "
                                         "leave one of them at its default: ", "wgmma (")),
                             ([*SMALL, "--precision", "high", "--kv-dtype", "e4m3"],
                              ("kv_dtype and precision are not supported together",))):
            for command in ("plan", "prewarm"):
                with self.subTest(command=command, flags=flags):
                    result = self.run_cli(command, *flags, "--sm", "90")
                    self.assert_failed(result, *words)

    def test_other_libraries_words_for_nothing(self):
        plain = self.assert_ok(self.run_cli("plan", *SMALL, "--sm", "90", "--json")).json()
        spelled = self.run_cli("plan", *SMALL, "--window-left", "-1", "--window-right", "0", "--softcap", "0", "--sm",
                               "90", "--json")
        self.assertEqual(self.assert_ok(spelled).json(), plain)

    def test_requests(self):
        for text, name in BAD_REQUESTS:
            with self.subTest(text=text[:60]):
                file = self.write("request.json", text)
                result = self.run_cli("plan", "--request", file, "--sm", "90")
                self.assert_refused(result, name, "request.json")
                self.assertNotIn("--", result.err, "no flag said it")

    def test_configs(self):
        for text, name in BAD_CONFIGS:
            with self.subTest(text=text[:60]):
                file = self.write("config.json", text)
                for command in ("plan", "prewarm", "check"):
                    flags = [] if command == "check" else ["--sm", "90"]
                    self.assert_refused(self.run_cli(command, "--model", file, *flags), name, "config.json")
        # One file, one name.
        readme = self.write("README.md", "# attnsmith")
        self.assertIn(f"error: {readme}: malformed JSON", self.run_cli("plan", "--model", readme, "--sm", "90").err)

    def test_unreadable_files(self):
        for flag in ("--model", "--request"):
            for path in ("missing.json", "", "/dev/null/x", "a\nb"):
                with self.subTest(flag=flag, path=path):
                    self.assert_refused(self.run_cli("plan", flag, path, "--sm", "90"), "cannot be read")
        self.assert_refused(self.run_cli("plan", "--request", "/", "--sm", "90"), "Is a directory")
        self.assert_refused(self.run_cli("plan", "--model", self.folder, "--sm", "90"), "config.json")
        self.assert_refused(self.run_cli("plan", "--request", "/dev/zero", "--sm", "90"), "/dev/zero")
        self.assert_refused(self.run_cli("plan", "--request", "/dev/null", "--sm", "90"), "/dev/null")

    def test_commands(self):
        self.assert_refused(self.run_cli("plna"), "did you mean plan?")
        self.assert_refused(self.run_cli("cache", "lst"), "has no such command")
        self.assert_refused(self.run_cli("plan", "check"), "\"check\": plan takes flags only; see --help")
        for command, *names in (("cache", "stat", "export"), ("bench", "jit")):
            result = self.run_cli(command)
            self.assert_refused(result, f"attnsmith {command} needs a command: ")
            for name in names:
                self.assertRegex(result.err, rf"\b{name}\b")

    def test_arguments_without_their_flags(self):
        for command, flag in ((("plan", "a/config.json"), "--model"), (("prewarm", "org/name"), "--model"), (("plan", "90"), "--sm"),
                              (("cache", "export", "x.bundle"), "--output"),
                              (("cache", "export", "out/x.bundle"), "--output"), (("cache", "export", "./x.bundle"), "--output"), (("tune", "table.txt"), "--output")):
            with self.subTest(command=command):
                self.assert_refused(self.run_cli(*command), f'takes flags only; did you mean {flag} "{command[-1]}"?')
        secret = self.run_cli("cache", "export", "http://user:SECRET@host/x")
        self.assert_refused(secret, "error: an argument with an @ (not shown, since it may hold a password): export does not take it")
        self.assertNotIn("SECRET", secret.err)
        encoded = self.run_cli("cache", "export", "http://user:SECRET%40host/x")
        self.assertNotIn("SECRET", encoded.err)
        misspelt = self.run_cli("cache", "export", "--cahce=http://user:SECRET@host/x")
        self.assert_refused(misspelt, "did you mean --cache?")
        self.assertNotIn("SECRET", misspelt.err)

    def test_names_of_the_hub(self):
        for command in ("plan", "prewarm"):
            self.assert_refused(self.run_cli(command, "--model", "meta-llama/Llama-3.1-8B", "--sm", "90"),
                                "`hf download meta-llama/Llama-3.1-8B config.json`")
        self.assert_refused(self.run_cli("plan", "--model", "models/llama.json", "--sm", "90"), "cannot be read")

    def test_the_output_has_one_spelling_and_its_older_ones(self):
        for flag in ("-o", "--output", "--out"):  # refused for its folder before a GPU is looked for
            with self.subTest(flag=flag):
                self.assert_refused(self.run_cli("tune", flag, "/nowhere/table.json"), "/nowhere/table.json")
        self.assertNotIn("--out ", self.run_cli("tune", "--help").out)
        self.assert_refused(self.run_cli("help", "plna"), "did you mean plan?")
        self.assert_refused(self.run_cli("help", "plan", "x"), "plan has no such command")
        self.assert_refused(self.run_cli("--sm", "90", "plan"), "--sm")
        self.assert_refused(self.run_cli("plan\x1b[31m"), "\\")

    def test_own_flags(self):
        self.assert_refused(self.run_cli("prewarm", *SMALL, "--sm", "90", "--jobs", "-1"), "jobs")
        for jobs in ("many", "2x", "2.0", "0x2", " 2"):
            self.assert_refused(self.run_cli("prewarm", *SMALL, "--sm", "90", "--jobs", jobs), "jobs")
        self.assert_refused(self.run_cli("bench", "jit", "--repeat", "0"), "repeat")
        self.assert_refused(self.run_cli("bench", "jit", "--sm", "80,90"), "sm")
        self.assert_refused(self.run_cli("check", "--seed", "x", "--model", LLAMA, "--filter", "nothing"), "--filter")
        self.assert_refused(self.run_cli("cache", "export", "--sm", "native", "-o", "x"), "no GPU is present")
        self.assert_refused(self.run_cli("cache", "clear", "--cache", self.folder), "--yes")
        self.assert_refused(self.run_cli("plan", *SMALL, "--sm", "90", env={"ATTNSMITH_LOG": "loud"}), "ATTNSMITH_LOG")

    def test_a_fifo_that_nobody_writes_to(self):
        os.mkfifo(self.folder / "fifo")
        words = ("--sm", "90", "--cache", "kernels")
        started = [self.start("prewarm", "--recorded", "fifo", *words), self.start("prewarm", "--model", "fifo", *words),
                   self.start("plan", *SMALL, "--sm", "90", env={"ATTNSMITH_TUNING": "fifo"})]
        for process in started:
            self.assert_refused(self.finish(process), "fifo", "a FIFO that nobody opened for writing")

    def test_the_error_as_json(self):
        def error(*arguments, **options):
            return self.assert_error_json(self.run_cli(*arguments, "--json", **options))

        invalid = error("plan", *SMALL, "--sm", "91")
        self.assertEqual((invalid["code"], invalid["field"], invalid["value"]), ("invalid_request", "sm", '"91"'))
        self.assertIn("90", invalid["accepted"])
        for arguments in ([*SMALL, "--sm", "90", "--kv", "paged", "--page-size", "0"],
                          ["--model", LLAMA, "--sm", "90", "--page-size", "0"]):
            invalid = error("plan", *arguments)
            self.assertEqual((invalid["code"], invalid["field"]), ("invalid_request", "page_size"))
        self.assertEqual(error("plan", *SMALL, "--pagesize", "3")["code"], "bad_usage")
        self.assertEqual(error("plan", "--request", "missing.json")["code"], "bad_usage")
        self.assertEqual(error("plan", "--head-dim", "63", *HEADS, "--sm", "90")["code"], "unsupported")
        self.assertTrue(error("plan", *SMALL, "--consistency", "bitwise", "--precision", "high", "--sm", "90")["refusals"])
        self.assertEqual(error("cache", "ls", env={"HOME": None})["code"], "cache_error")
        self.assertEqual(error("check", "--model", LLAMA)["code"], "failed")
        missing = error("bench", "jit", "--sm", "90", "--repeat", "1", env={"ATTNSMITH_NVRTC_PATH": "/nowhere/x"})
        self.assertEqual((missing["code"], missing["tried"][0].startswith("/nowhere/x")), ("library_missing", True))
        self.assertEqual(self.run_cli("plan", *SMALL, "--sm", "91").out, "")

    def test_a_merge_is_no_attention_to_time(self):
        self.assert_refused(self.run_cli("bench", "attention", "--op", "merge", "--head-dim", "64", *HEADS), "op")

    def test_what_is_not_built_is_no_bad_request(self):
        self.assert_failed(self.run_cli("plan", "--head-dim", "63", *HEADS, "--sm", "90"), "head_dim")

    def test_slots_of_a_table_are_not_compared(self):
        append = ("plan", "--op", "append", "--head-dim", "64", *HEADS, "--check-slots", "--sm", "90")
        planned = self.run_cli(*append)
        self.assert_ok(planned)
        self.assertIn(", check_slots", planned.out)
        self.assert_refused(self.run_cli(*append, "--slots", "table"), "check_slots")


if __name__ == "__main__":
    main()
