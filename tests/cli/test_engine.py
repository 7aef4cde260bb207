"""--engine: all that an inference engine asks for of a model."""

import json

from support import LLAMA, MODELS, PARTIAL, SMALL_LLAMA, CliTest, main

VLLM = ["--engine", "vllm", "--sm", "90"]
BERT = {"model_type": "bert", "hidden_size": 128, "num_attention_heads": 8, "num_hidden_layers": 2, "torch_dtype": "float16"}


class Engine(CliTest):
    def dry_run(self, model, *words):
        return self.assert_ok(self.run_cli("prewarm", "--model", model, *VLLM, "--dry-run", "--json", *words)).json()

    def names(self, *words):
        return [kernel["name"] for kernel in self.dry_run(*words)["kernels"]]

    def assert_kernels(self, names, *begins):
        """Each name begins with one of these, and each of these begins a name."""
        for name in names:
            self.assertTrue(name.startswith(begins), name)
        for begin in begins:
            self.assertTrue(any(name.startswith(begin) for name in names), begin)

    def test_kernels_of_a_decoder(self):
        for model, dims, more in ((LLAMA, 128, ""), (str(MODELS / "gemma-2-9b.json"), 256, " softcap"),
                                  (str(MODELS / "gpt-oss-20b.json"), 64, "")):
            with self.subTest(model=model):
                names = self.names(model)
                self.assertEqual([name for name in names if name.startswith("append")],
                                 [f"append bf16 {dims}x{dims} paged to bf16 mapping"])
                attentions = [name for name in names if name.startswith("attention")]
                self.assert_kernels(attentions, f"attention mma bf16 {dims}x{dims} paged",
                                    f"attention wgmma bf16 {dims}x{dims} paged")
                self.assertTrue(all(name.endswith(more) for name in attentions), attentions)

    def test_kernels_of_latents(self):
        self.assert_kernels(self.names(str(MODELS / "deepseek-v3.json")), "mla wgmma bf16 512+64 paged",
                            "append bf16 512+64 paged to bf16 mapping", "attention mma bf16 192x128 contiguous",
                            "attention wgmma bf16 192x128 contiguous", "merge bf16 128")

    def test_kernels_of_an_encoder(self):
        file = self.write("config.json", json.dumps(BERT))
        self.assert_kernels(self.names(file), "attention mma fp16 16x16 contiguous")

    def test_options_of_the_engine(self):
        stored = self.names(LLAMA, "--kv-dtype", "fp8", "--page-size", "32")
        self.assertEqual(stored, self.names(LLAMA, "--kv-dtype", "e4m3"))
        self.assertIn("append bf16 128x128 paged to e4m3 mapping", stored)
        self.assertEqual(self.names(LLAMA, "--kv-dtype", "auto"), self.names(LLAMA))
        for name in self.names(LLAMA, "--consistency", "bitwise"):
            self.assertTrue(name.startswith("append") or name.endswith("bitwise"), name)
        both = self.names(LLAMA, "--kv-dtype", "bf16,fp8_e5m2")
        self.assertLess(set(self.names(LLAMA)), set(both))
        divided = self.names(LLAMA, "--tensor-parallel", "8", "--context-parallel", "2")
        self.assertTrue({name for name in divided if " contiguous " in name}, divided)
        # Heads on a GPU are an argument of the launch.
        self.assertEqual(self.names(LLAMA, "--tensor-parallel", "8"), self.names(LLAMA))

    def test_a_part_that_is_not_supported(self):
        result = self.run_cli("prewarm", "--model", PARTIAL, *VLLM, "--dry-run", "--json")
        self.assert_failed(result, "full_attention/decode")
        self.assertEqual(len(result.json()["unsupported"]), 1)
        self.assertGreater(result.json()["summary"]["total"], 2)

    def test_several_models(self):
        gemma = str(MODELS / "gemma-2-9b.json")
        several = self.dry_run(LLAMA, "--model", gemma)["kernels"]
        self.assertEqual({kernel["key"] for kernel in several},
                         {kernel["key"] for model in (LLAMA, gemma) for kernel in self.dry_run(model)["kernels"]})

    def test_plans(self):
        result = self.run_cli("plan", "--model", str(MODELS / "deepseek-v3.json"), *VLLM, "--json")
        plans = self.assert_ok(result).json()["plans"]
        for plan in plans:
            self.assert_plan(plan)
        self.assertEqual([(plan["model"]["name"], plan["request"]["op"]) for plan in plans],
                         [("full_attention/prefill", "attention"), ("full_attention/context", "attention"),
                          ("full_attention/decode", "mla"), ("full_attention/append", "append")])
        text = self.assert_ok(self.run_cli("plan", "--model", LLAMA, *VLLM)).out
        self.assertIn("paged KV (HND pages of 16)", text)
        self.assertIn("full_attention/append, 32 layers\n", text)

    def test_what_is_built_is_exported_and_hit(self):
        model = self.write("config.json", json.dumps(SMALL_LLAMA))
        asked = ["--model", model, *VLLM, "--cache", "kernels"]
        built = self.assert_ok(self.run_cli("prewarm", *asked, "--json")).json()["summary"]
        self.assertEqual(built["compiled"], built["total"])
        exported = self.assert_ok(self.run_cli("cache", "export", *asked, "-o", "bundle", "--json")).json()
        self.assertEqual(exported["entries"], built["total"])
        other = [*asked[:-1], "other", "--cache", "bundle"]
        hits = self.assert_ok(self.run_cli("prewarm", *other, "--dry-run", "--json")).json()["summary"]
        self.assertEqual(hits["hits"], built["total"])

    def test_bad_usage(self):
        prewarm = ["prewarm", "--model", LLAMA, "--sm", "90", "--dry-run"]
        vllm = [*prewarm, "--engine", "vllm"]
        for words in (["prewarm", "--head-dim", "64", "--q-heads", "8"], ["prewarm", "--recorded", LLAMA], ["plan"],
                      ["cache", "push", "--cache", "kernels", "--cache", "http://127.0.0.1:1/kernels"],
                      ["cache", "export", "--cache", "kernels", "-o", "bundle"]):
            self.assert_refused(self.run_cli(*words, "--engine", "vllm"), "--engine is for --model", "add --model FILE")
        for command in ("check", "tune", "bench attention", "cache explain"):
            self.assert_refused(self.run_cli(*command.split(), "--model", LLAMA, "--engine", "vllm"), "--engine", "no such flag")
        self.assert_refused(self.run_cli(*prewarm, "--engine", "sglang"), "--engine", "\"sglang\" is not accepted; expected vllm")
        for flag, value in (("kv", "dense"), ("kv", "paged"), ("page-order", "NHD"), ("index-dtype", "int64"),
                            ("slots", "mapping"), ("kv-scale", "tensor"), ("alignment", "8"), ("o-dtype", "fp32"),
                            ("precision", "high"), ("lse", "true")):
            self.assert_refused(self.run_cli(*vllm, f"--{flag}={value}"), f"--{flag}", "--engine vllm", "leave it out")
        self.assert_refused(self.run_cli(*vllm, "--kv-dtype", "nvfp4"), "--kv-dtype", "nvfp4", "e4m3")
        self.assert_refused(self.run_cli(*vllm, "--kv-dtype", "auto,fp8"), "--kv-dtype", "\"auto\" alone")
        self.assert_refused(self.run_cli(*prewarm, "--kv-dtype", "auto"), "--kv-dtype", "\"auto\"")
        self.assert_refused(self.run_cli(*vllm, "--page-size", "0"), "--page-size")
        self.assert_refused(self.run_cli(*vllm, "--page-size", "24"), "--page-size", "24", "a multiple of 16")
        self.assert_refused(self.run_cli(*prewarm, "--context-parallel", "2"), "--context-parallel is for --engine")
        self.assert_refused(self.run_cli(*vllm, "--tensor-parallel", "4", "--context-parallel", "3"), "--context-parallel", "3 does not divide")
        self.assert_refused(self.run_cli(*vllm, "--q-heads", "8"), "--q-heads", "--model")


if __name__ == "__main__":
    main()
