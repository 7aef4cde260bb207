"""attnsmith.compat.flash_attn.install(), and what the packages hold that `import flash_attn` then finds. Programs run in
interpreters of their own, since what they import stays."""

import importlib.util
import inspect
import json
import os
import pathlib
import sys
import unittest
import warnings

from flash_attn_cases import FlashTest, batched, flash, rotated
from support import PACKAGE, PythonTest, attnsmith, python

try:
    import torch
except ImportError:
    torch = None
else:
    import attnsmith.compat.flash_attn as fa
    from attnsmith.compat.flash_attn import bert_padding, flash_attn_3, flash_attn_3_with_lse
    from attnsmith.compat.flash_attn.flash_attn_interface import (_flash_attn_forward, _flash_attn_varlen_forward,
                                                                  _wrapped_flash_attn_backward,
                                                                  _wrapped_flash_attn_forward)
    from attnsmith.compat.flash_attn.layers import rotary

# Prints what a program finds, as one line of JSON: whose modules, without importing torch with them, and metadata.
FINDS = """
import importlib.metadata, importlib.util, json
found = {}
for name in ("flash_attn", "flash_attn_interface", "flash_attn_3"):
    spec = importlib.util.find_spec(name)
    found[name] = spec and ("attnsmith" if "/attnsmith/compat/" in spec.origin else spec.origin)
for name in ("flash_attn", "flash-attn", "flash_attn_3", "flash-attn-3"):
    try:
        found[f"version of {name}"] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[f"version of {name}"] = None
print(json.dumps(found))
"""
INSTALLED = {"flash_attn": "attnsmith", "flash_attn_interface": "attnsmith", "flash_attn_3": "attnsmith",
             "version of flash_attn": "2.8.3", "version of flash-attn": "2.8.3", "version of flash_attn_3": "3.0.0",
             "version of flash-attn-3": "3.0.0"}
ABSENT = dict.fromkeys(INSTALLED)
WITHOUT_FA3 = {name: None if "3" in name or "interface" in name else found for name, found in INSTALLED.items()}
INSTALL = "import attnsmith.compat.flash_attn as fa; fa.install({}); "


@unittest.skipIf(torch is None, "PyTorch is not installed")
class ProgramTest(PythonTest):
    def printed(self, program, *arguments, **environment):
        done = python(program, *arguments, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def found(self, program, **environment):
        return json.loads(self.printed(program, **environment).splitlines()[-1])

    def real_flash_attn(self):
        """A folder for PYTHONPATH with something that is called flash_attn."""
        package = self.folder / "real/flash_attn"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("__version__ = '2.0.0'\ndef flash_attn_func(): pass\n")
        return package.parent


class Install(ProgramTest):
    def test_import_and_metadata_find_the_packages_until_uninstall(self):
        self.assertEqual(self.found(FINDS), ABSENT)
        self.assertEqual(self.found(INSTALL.format("") + FINDS), INSTALLED)
        self.assertEqual(self.found(INSTALL.format("fa3=False") + FINDS), WITHOUT_FA3)
        self.assertEqual(self.found(INSTALL.format("") + FINDS + "\nfa.uninstall()\n" + FINDS), ABSENT)

    def test_what_programs_import(self):
        self.printed(INSTALL.format("") + """
import flash_attn, flash_attn_interface
from flash_attn import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,
                        flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)
from flash_attn.bert_padding import (index_first_axis, index_first_axis_residual, index_put_first_axis, pad_input,
                                     unpad_input, unpad_input_for_concatenated_sequences)
from flash_attn.flash_attn_interface import (_flash_attn_forward, _flash_attn_varlen_forward, _wrapped_flash_attn_backward,
                                             _wrapped_flash_attn_forward, flash_attn_varlen_func)
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_func, apply_rotary_emb_qkv_
from flash_attn.ops.triton.rotary import apply_rotary
from flash_attn_interface import _flash_attn_forward, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn_3.flash_attn_interface import flash_attn_func
assert flash_attn.flash_attn_interface.flash_attn_func is flash_attn.flash_attn_func is fa.flash_attn_func
assert flash_attn.__version__ == "2.8.3"
""")
        done = python(INSTALL.format("") + "import flash_attn.losses")
        self.assertIn("No module named 'flash_attn.losses'", done.stderr)

    def test_a_flash_attn_that_is_installed_is_replaced_only_where_that_is_said(self):
        path = os.pathsep.join([str(self.real_flash_attn()), str(PACKAGE.parent)])
        for before in ("", "import flash_attn; "):
            with self.subTest(before=before):
                done = python(before + INSTALL.format(""), PYTHONPATH=path)
                self.assertIn(f"InvalidRequest: replace: False is not accepted; expected True, to take the place of "
                              f"flash_attn, which is installed in {self.folder}/real/flash_attn/__init__.py", done.stderr)
                self.assertEqual(self.found(before + INSTALL.format("replace=True") + FINDS, PYTHONPATH=path), INSTALLED)
        self.printed("import flash_attn; real = flash_attn; " + INSTALL.format("replace=True") + """
import flash_attn
assert flash_attn is not real
fa.uninstall()
import flash_attn
assert flash_attn is real and flash_attn.__version__ == "2.0.0", flash_attn
""", PYTHONPATH=path)

    def test_a_folder_without_code_is_no_flash_attn(self):
        (self.folder / "flash_attn").mkdir()
        path = os.pathsep.join([str(PACKAGE.parent), str(self.folder)])
        self.assertEqual(self.found(INSTALL.format("") + FINDS, PYTHONPATH=path), INSTALLED)

    def test_programs_that_have_decided_are_named(self):
        told = """
import sys, types, warnings
for name in {names}:
    sys.modules[name] = types.ModuleType(name)
import attnsmith.compat.flash_attn as fa
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    fa.install()
    fa.install()
print([(str(one.message), one.filename) for one in caught])
"""
        self.assertEqual(self.printed(told.format(names=())).strip(), "[]")
        for names, said in ((("diffusers",), "diffusers looked"),
                            (("diffusers", "transformers"), "transformers and diffusers looked")):
            (message, file), = eval(self.printed(told.format(names=names)))
            self.assertTrue(message.startswith(f"attnsmith: {said}"), message)
            self.assertIn("call install() first", message)
            self.assertEqual(file, "<string>", "the caller's line")

    def test_installing_again_changes_what_is_installed(self):
        self.assertEqual(self.found(INSTALL.format("") + "import flash_attn_interface; fa.install(fa3=False); " + FINDS),
                         WITHOUT_FA3)
        self.printed(INSTALL.format("") + """
import flash_attn_interface
fa.install(fa3_returns_lse=True)
import flash_attn_interface
assert flash_attn_interface.flash_attn_func.__module__.endswith("flash_attn_3_with_lse")
""")

    def test_the_lse_of_functions_that_are_left_out(self):
        with self.assertRaisesRegex(attnsmith.InvalidRequest, "^fa3_returns_lse: True"):
            fa.install(fa3=False, fa3_returns_lse=True)

    def test_a_process_that_multiprocessing_starts(self):
        file = self.folder / "program.py"
        file.write_text("""
import multiprocessing
def child(queue):
    import flash_attn, importlib.metadata
    queue.put((flash_attn.__version__, importlib.metadata.version("flash_attn")))
if __name__ == "__main__":
    import attnsmith.compat.flash_attn as fa
    fa.install()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=120))
    process.join()
""")
        program = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        self.assertEqual(self.printed(program, file).strip(), "('2.8.3', '2.8.3')")


class Launcher(ProgramTest):
    """python -m attnsmith.compat.flash_attn PROGRAM ARGS"""

    RUN = "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'attnsmith.compat.flash_attn', *sys.argv[1:]])"

    def test_a_program_and_its_child_find_the_packages(self):
        file = self.folder / "program.py"
        file.write_text(f"import subprocess, sys\nprint(sys.argv[1:])\nsubprocess.run([sys.executable, '-c', '''{FINDS}'''])\n")
        for command in ((file,), (sys.executable, file)):
            with self.subTest(command=command):
                arguments, found = self.printed(self.RUN, *command, "--replace", "-m").splitlines()
                self.assertEqual(arguments, "['--replace', '-m']")
                self.assertEqual(json.loads(found), INSTALLED)
        self.assertEqual(json.loads(self.printed(self.RUN, "--no-fa3", "-c", FINDS)), WITHOUT_FA3)
        path = os.pathsep.join([str(PACKAGE.parent), str(self.folder)])
        arguments, found = self.printed(self.RUN, "-m", "program", "more", PYTHONPATH=path).splitlines()
        self.assertEqual((arguments, json.loads(found)), ("['more']", INSTALLED))

    def test_the_program_may_call_install_itself(self):
        self.assertEqual(json.loads(self.printed(self.RUN, "-c", INSTALL.format("") + FINDS)), INSTALLED)

    def test_the_package_is_found_where_only_the_launcher_found_it(self):
        program = f"import os, sys; os.chdir({str(PACKAGE.parent)!r}); " + self.RUN
        file = self.folder / "program.py"
        file.write_text(FINDS)
        self.assertEqual(self.found(program.replace("sys.argv[1:]", repr([str(file)])), PYTHONPATH=None), INSTALLED)

    def test_the_lse(self):
        program = "import flash_attn_interface as f; print(f.flash_attn_func.__module__)"
        self.assertTrue(self.printed(self.RUN, "-c", program).strip().endswith("flash_attn_3"))
        self.assertTrue(self.printed(self.RUN, "--fa3-returns-lse", "-c", program).strip().endswith("_with_lse"))

    def test_wrong_arguments(self):
        for arguments, code, said in (((), 2, "the program is missing"), (("-m",), 2, "the program is missing"),
                                      (("--fa2", "a.py"), 2, "there is no option --fa2"),
                                      (("--no-fa3", "--fa3-returns-lse", "a.py"), 2, "fa3_returns_lse: True"),
                                      (("/no/such/program",), 1, "/no/such/program cannot be run: No such file")):
            with self.subTest(arguments=arguments):
                done = python(self.RUN, *arguments)
                self.assertEqual((done.returncode, done.stdout), (code, ""))
                self.assertTrue(done.stderr.startswith(f"attnsmith.compat.flash_attn: {said}"), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("--fa3-returns-lse", self.printed(self.RUN, "--help"))

    def test_a_flash_attn_that_is_installed(self):
        path = os.pathsep.join([str(self.real_flash_attn()), str(PACKAGE.parent)])
        done = python(self.RUN, "-c", FINDS, PYTHONPATH=path)
        self.assertEqual(done.returncode, 2)
        self.assertIn("to take the place of flash_attn, which is installed in", done.stderr)
        self.assertEqual(json.loads(self.printed(self.RUN, "--replace", "-c", FINDS, PYTHONPATH=path)), INSTALLED)


class Importers(ProgramTest):
    """The programs that look for flash_attn, unchanged. torch.cuda.is_available() says yes, as they ask it first."""

    START = """
import sys, unittest.mock, torch
sys.path.append(sys.argv[1])
import support
unittest.mock.patch.object(torch.cuda, "is_available", lambda: True).start()
import attnsmith.compat.flash_attn as fa
fa.install()
"""

    def run_importer(self, name, program):
        if importlib.util.find_spec(name) is None:
            self.skipTest(f"{name} is not installed")
        path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
        return self.printed(self.START + program, pathlib.Path(__file__).resolve().parent, PYTHONPATH=path)

    def test_transformers(self):
        self.run_importer("transformers", """
import transformers
from stand_in import standing_in
from transformers.utils import is_flash_attn_2_available, is_flash_attn_greater_or_equal
from transformers.utils.import_utils import is_flash_attn_3_available
assert is_flash_attn_2_available() and is_flash_attn_3_available() and is_flash_attn_greater_or_equal("2.8")
config = transformers.LlamaConfig(vocab_size=97, hidden_size=64, intermediate_size=48, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config).eval()
tokens = torch.randint(1, 97, (3, 12))
mask = torch.ones_like(tokens)
mask[1, :4] = mask[2, :7] = 0
with torch.no_grad():
    wanted = model(tokens, attention_mask=mask).logits[mask.bool()]
    for name in ("flash_attention_2", "flash_attention_3"):
        model.set_attn_implementation(name)
        for given, function in ((mask, "varlen_attention"), (None, "attention")):
            with standing_in(torch.float32) as calls:
                got = model(tokens, attention_mask=given).logits[mask.bool()]
            assert [call[0] for call in calls] == [function] * 2, calls
            if given is not None:
                torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)
""")

    def test_encoder_decoders_of_transformers(self):
        """transformers cuts the encoder's mask to the queries' length. Where that gives a mask of another length than the
        queries, unpad_input refuses it; one query has what it should have."""
        self.run_importer("transformers", """
import attnsmith, transformers
from stand_in import standing_in
config = transformers.BartConfig(vocab_size=97, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                                 decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64)
model = transformers.BartModel(config).eval()
tokens = torch.randint(3, 97, (2, 12))
mask = torch.ones_like(tokens)
mask[1, 8:] = 0
with torch.no_grad(), standing_in(torch.float32):
    inputs = {"attention_mask": mask, "decoder_input_ids": tokens[:, :1]}
    wanted = model(tokens, **inputs)[0]
    model.set_attn_implementation("flash_attention_2")
    torch.testing.assert_close(model(tokens, **inputs)[0], wanted, rtol=2e-4, atol=2e-4)
    try:
        model(tokens, attention_mask=mask, decoder_input_ids=tokens.repeat(1, 2))
    except attnsmith.InvalidRequest as error:
        assert error.field == "attention_mask.shape", error
    else:
        raise AssertionError("not refused")
""")

    def test_diffusers(self):
        self.run_importer("diffusers", """
from diffusers.models import attention_dispatch
from stand_in import standing_in
flash = attention_dispatch.AttentionBackendName.FLASH
attention_dispatch._check_attention_backend_requirements(flash)
attention_dispatch._check_attention_backend_requirements(attention_dispatch.AttentionBackendName._FLASH_3)
q, k, v = (torch.randn(2, 7, 4, 8, dtype=torch.float64) for _ in range(3))
wanted = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
with standing_in(torch.float64) as calls, torch.no_grad():
    torch.testing.assert_close(attention_dispatch.dispatch_attention_fn(q, k, v, backend=flash), wanted)
    out, lse, _, _ = attention_dispatch._wrapped_flash_attn_forward(q, k, v, 0.0, 8 ** -0.5, False, -1, -1, 0.0, None, False)
torch.testing.assert_close(out, wanted)
assert [call[0] for call in calls] == ["attention"] * 2
""")

    def test_kernels_finds_the_folders_by_local_kernels(self):
        """As in docs/replace-flash-attn.md. nanochat takes flash_attn_interface of what get_kernel() gives."""
        folder = PACKAGE / "compat"
        names = {"kernels-community/flash-attn2": folder / "flash2", "varunneal/flash-attention-3": folder / "flash3"}
        local = ":".join(f"{name}={path}" for name, path in names.items())
        self.run_importer("kernels", f"""
import os
os.environ["LOCAL_KERNELS"] = {local!r}
from kernels import get_kernel
two = get_kernel("kernels-community/flash-attn2")
assert two.flash_attn_varlen_func is fa.flash_attn_varlen_func
assert two.flash_attn_interface._flash_attn_forward and two.bert_padding.unpad_input
three = get_kernel("varunneal/flash-attention-3").flash_attn_interface
from attnsmith.compat.flash_attn import flash_attn_3
assert three.flash_attn_func is flash_attn_3.flash_attn_func
""")


class Parts(FlashTest):
    """What flash_attn's own autograd functions are made of."""

    def test_forward(self):
        q, k, v = self.dense()
        wanted, wanted_lse = batched(q, k, v, softmax_scale=0.3, window_size=(2, 0), softcap=2.0)
        for forward in (_flash_attn_forward, _wrapped_flash_attn_forward):
            out, lse, nothing, state = forward(q, k, v, 0.0, 0.3, False, 2, 0, 2.0, None, False)
            self.assert_same(out, wanted)
            self.assert_same(lse, wanted_lse)
            self.assertEqual((nothing.numel(), tuple(state.shape)), (0, (2,)))

    def test_varlen_forward(self):
        q, k, v = self.dense()
        wanted, wanted_lse = batched(q, k, v, causal=True)
        offsets = self.integers(0, 5, 10), self.integers(0, 7, 14)
        out, lse, _, _ = _flash_attn_varlen_forward(*(x.flatten(0, 1) for x in (q, k, v)), *offsets, 5, 7, 0.0, None, True)
        self.assert_same(out, wanted.flatten(0, 1))
        self.assert_same(lse, wanted_lse.transpose(0, 1).flatten(1))

    def test_backward_is_refused_by_name(self):
        for module in (flash_attn_3, fa.flash_attn_interface):
            self.assert_refused("_flash_attn_backward", attnsmith.Unsupported, module._flash_attn_backward, 1, 2, x=3)
        self.assert_refused("_flash_attn_varlen_backward", attnsmith.Unsupported,
                            fa.flash_attn_interface._wrapped_flash_attn_varlen_backward)
        self.assertIs(_wrapped_flash_attn_backward, fa.flash_attn_interface._flash_attn_backward)


class FlashAttention3(FlashTest):
    """flash_attn_interface: positional arguments and results of FlashAttention 3."""

    # flash_attn_interface.py of the wheel tokenspeed-fa3 3.0.0.post20260810, whose sinks come last.
    _SCALES = ("q_descale", "k_descale", "v_descale")
    _OFFSETS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k")
    _TAIL = ("window_size", "attention_chunk", "softcap", "num_splits", "pack_gqa", "deterministic", "sm_margin",
             "return_attn_probs", "sinks")
    POSITIONAL = {
        "flash_attn_func": ("q", "k", "v", "softmax_scale", "causal", "qv", *_SCALES, *_TAIL),
        "flash_attn_varlen_func": ("q", "k", "v", *_OFFSETS, "softmax_scale", "causal", "qv", *_SCALES, *_TAIL),
        "flash_attn_qkvpacked_func": ("qkv", "softmax_scale", "causal", *_SCALES, "window_size", "attention_chunk",
                                      "softcap", "deterministic", "num_heads_q", "sm_margin", "return_attn_probs"),
        "flash_attn_with_kvcache": (
            "q", "k_cache", "v_cache", "k", "v", "qv", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx",
            "cache_leftpad", "page_table", "cu_seqlens_q", "cu_seqlens_k_new", "max_seqlen_q", "rotary_seqlens", *_SCALES,
            "softmax_scale", "causal", "window_size", "attention_chunk", "softcap", "rotary_interleaved",
            "scheduler_metadata", "num_splits", "pack_gqa", "sm_margin", "return_softmax_lse", "sinks")}

    def test_positional_arguments(self):
        for name, wanted in self.POSITIONAL.items():
            with self.subTest(name):
                got = inspect.signature(getattr(flash_attn_3, name)).parameters.values()
                self.assertEqual([one.name for one in got if one.kind is one.POSITIONAL_OR_KEYWORD], list(wanted))
                ours = inspect.signature(getattr(fa, name)).parameters
                self.assertEqual({one.name: one.default for one in got if one.name in ours and one.name != "num_splits"},
                                 {one.name: ours[one.name].default for one in got
                                  if one.name in ours and one.name != "num_splits"})

    def test_results(self):
        q, k, v = self.dense()
        wanted, wanted_lse = batched(q, k, v, softmax_scale=0.3, causal=True)
        flat, offsets = [x.flatten(0, 1) for x in (q, k, v)], (self.integers(0, 5, 10), self.integers(0, 7, 14), 5, 7)
        words = {"softmax_scale": 0.3, "causal": True}
        self.assert_same(flash_attn_3.flash_attn_func(q, k, v, 0.3, True), wanted)
        self.assert_same(flash_attn_3.flash_attn_varlen_func(*flat, *offsets, None, None, 0.3, True), wanted.flatten(0, 1))
        flat_lse = wanted_lse.transpose(0, 1).flatten(1)
        for module, more in ((flash_attn_3, {"return_attn_probs": True}), (flash_attn_3_with_lse, {})):
            for result, out, lse in ((module.flash_attn_func(q, k, v, **words, **more), wanted, wanted_lse),
                                     (module.flash_attn_varlen_func(*flat, *offsets, **words, **more),
                                      wanted.flatten(0, 1), flat_lse)):
                self.assertEqual(len(result), 2)
                self.assert_same(result[0], out)
                self.assert_same(result[1], lse)
            qkv = torch.stack((k, k, v), 2)
            out, lse = module.flash_attn_qkvpacked_func(qkv, **words, **more)
            self.assert_same(out, batched(k.repeat(1, 1, 1, 1), k, v, softmax_scale=0.3, causal=True)[0])
            cached = module.flash_attn_with_kvcache(q, k, v, **words)
            self.assert_same(cached, wanted)
            self.assert_same(module.flash_attn_with_kvcache(q, k, v, return_softmax_lse=True, **words)[1], wanted_lse)
            sinks = torch.randn(4)
            for name in ("sinks", "s_aux"):
                self.assert_same(module.flash_attn_func(q, k, v, **{name: sinks}, return_attn_probs=True)[0],
                                 batched(q, k, v, sinks=sinks)[0])

    def test_forward(self):
        q, k, v = self.dense()
        wanted, wanted_lse = batched(q, k, v, softmax_scale=0.3, window_size=(2, 0))
        nothing = (None,) * 19
        out, lse, *rest = flash_attn_3._flash_attn_forward(q, k, v, *nothing, None, 0.3, causal=False, window_size_left=2,
                                                           window_size_right=0, num_splits=1)
        self.assert_same(out, wanted)
        self.assert_same(lse, wanted_lse)
        self.assertEqual(rest, [None, None])
        for name in ("k_new", "page_table", "out", "seqused_q"):
            self.assert_refused(name, attnsmith.Unsupported, flash_attn_3._flash_attn_forward, q, k, v, **{name: q})


class BertPadding(FlashTest):
    def test_padding_is_taken_away_and_put_back(self):
        states = self.randn(3, 5, 2, 4)
        mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]])
        rows, indices, offsets, longest, used = bert_padding.unpad_input(states, mask)
        self.assertTrue(torch.equal(rows, torch.stack([states[0, 0], states[0, 1], states[2, 1], states[2, 2], states[2, 4]])))
        self.assertEqual((offsets.tolist(), offsets.dtype, longest, used.tolist(), used.dtype),
                         ([0, 2, 2, 5], torch.int32, 3, [2, 0, 3], torch.int32))
        self.assertIsInstance(longest, int)
        back = bert_padding.pad_input(rows, indices, 3, 5)
        self.assertTrue(torch.equal(back, states * mask[..., None, None]))

    def test_tokens_that_are_taken_along_unused(self):
        states, mask = self.randn(2, 3, 4), torch.tensor([[1, 0, 0], [1, 1, 0]])
        rows, _, offsets, longest, used = bert_padding.unpad_input(states, mask, torch.tensor([[0, 1, 0], [0, 0, 1]]))
        self.assertEqual((tuple(rows.shape), offsets.tolist(), longest, used.tolist()), ((5, 4), [0, 2, 5], 3, [1, 2]))

    def test_several_sequences_in_a_row(self):
        states, lengths = self.randn(2, 6, 4), torch.tensor([[2, 3, 0, 0, 0, 0], [1, 2, 1, 0, 0, 0]])
        rows, indices, offsets, longest = bert_padding.unpad_input_for_concatenated_sequences(states, lengths)
        self.assertTrue(torch.equal(rows, torch.cat([states[0, :5], states[1, :4]])))
        self.assertEqual((offsets.tolist(), longest), ([0, 2, 5, 6, 8, 9], 3))
        self.assertEqual(indices.tolist(), [0, 1, 2, 3, 4, 6, 7, 8, 9])

    def test_rows_by_their_indices(self):
        states, indices = self.randn(6, 3).requires_grad_(), torch.tensor([4, 0, 5])
        rows = bert_padding.index_first_axis(states, indices)
        self.assertTrue(torch.equal(rows, torch.stack([states[4], states[0], states[5]])))
        rows.sum().backward()
        self.assertEqual(states.grad[:, 0].tolist(), [1, 0, 0, 0, 1, 1])
        put = bert_padding.index_put_first_axis(rows.detach(), indices, 6)
        self.assertTrue(torch.equal(put[indices], rows) and bool((put[[1, 2, 3]] == 0).all()))
        rows, whole = bert_padding.index_first_axis_residual(states, indices)
        self.assertTrue(rows.requires_grad and not whole.requires_grad and torch.equal(whole, states))

    def test_a_mask_of_another_length_is_refused(self):
        """It would take the tokens of other sequences."""
        for shape in ((2, 4), (2, 6), (3, 5), (10,)):
            mask = torch.ones(shape, dtype=torch.int64)
            self.assert_refused("attention_mask.shape", attnsmith.InvalidRequest, bert_padding.unpad_input,
                                self.randn(2, 5, 4), mask)
        self.assert_refused("unused_mask.shape", attnsmith.InvalidRequest, bert_padding.unpad_input, self.randn(2, 5, 4),
                            torch.ones(2, 5), torch.ones(2, 4))


class Rotary(FlashTest):
    def table(self, positions=20, half=3):
        angles = self.randn(positions, half)
        return angles.cos(), angles.sin()

    def test_apply_rotary_emb(self):
        x, (cos, sin) = self.randn(2, 5, 3, 8), self.table()
        for interleaved in (False, True):
            for offsets in (0, 4, self.integers(3, 9)):
                with self.subTest(interleaved=interleaved, offsets=offsets):
                    first = offsets.tolist() if torch.is_tensor(offsets) else [offsets] * 2
                    wanted = torch.stack([rotated(x[b], cos, sin, torch.arange(5) + first[b], interleaved) for b in range(2)])
                    before = x.clone()
                    got = rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
                    self.assert_same(got, wanted)
                    self.assert_same(rotary.apply_rotary(got, cos, sin, offsets, interleaved=interleaved, conjugate=True), x)
                    self.assertTrue(torch.equal(x, before))
                    written = x.clone()
                    self.assertIs(rotary.apply_rotary_emb_func(written, cos, sin, interleaved, True, offsets), written)
                    self.assert_same(written, wanted)
            self.assert_same(rotary.apply_rotary_emb_torch(x, cos[:5], sin[:5], interleaved),
                             rotary.apply_rotary_emb(x, cos, sin, interleaved))

    def test_sequences_of_different_lengths(self):
        x, (cos, sin) = self.randn(6, 3, 8), self.table()
        ends = self.integers(0, 2, 2, 6)
        for offsets, positions in ((0, [0, 1, 0, 1, 2, 3]), (self.integers(5, 1, 2), [5, 6, 2, 3, 4, 5])):
            got = rotary.apply_rotary_emb(x, cos, sin, seqlen_offsets=offsets, cu_seqlens=ends, max_seqlen=4)
            self.assert_same(got, rotated(x, cos, sin, torch.tensor(positions), False))

    def test_tokens_of_no_sequence_stay_as_they_are(self):
        """Before the first sequence and after the last, where a padded tensor has tokens that nothing else says."""
        x, (cos, sin) = self.randn(9, 3, 8), self.table(positions=13)
        ends = self.integers(1, 4, 4, 6)
        for offsets, positions in ((0, [0, 1, 2, 0, 1]), (self.integers(10, 99, 11), [10, 11, 12, 11, 12])):
            wanted = torch.cat((x[:1], rotated(x[1:6], cos, sin, torch.tensor(positions), False), x[6:]))
            for inplace in (False, True):
                with self.subTest(offsets=offsets, inplace=inplace):
                    got = rotary.apply_rotary_emb(x.clone(), cos, sin, inplace=inplace, seqlen_offsets=offsets, cu_seqlens=ends,
                                                  max_seqlen=3)
                    self.assert_same(got, wanted)

    def test_16_bits_are_rotated_in_fp32(self):
        x, (cos, sin) = self.randn(2, 5, 3, 8).bfloat16(), self.table()
        got = rotary.apply_rotary_emb(x, cos.float(), sin.float())
        wanted = torch.stack([rotated(row.double(), cos, sin, torch.arange(5), False) for row in x])
        torch.testing.assert_close(got, wanted.bfloat16(), rtol=0, atol=2 ** -6)

    def test_packed_tensors_are_rotated_in_place(self):
        q, k, v = self.dense(5, 5)
        (cos, sin), (cos_k, sin_k) = self.table(), self.table()
        turned = [torch.stack([rotated(row, *table, torch.arange(5) + 2, False) for row in x])
                  for x, table in ((q, (cos, sin)), (k, (cos_k, sin_k)))]
        qkv = torch.cat((q, k, v), 2)
        self.assertIs(rotary.apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, seqlen_offsets=2, num_heads_q=4), qkv)
        self.assert_same(qkv, torch.cat((*turned, v), 2))
        packed = torch.stack((k, k, v), 2)
        rotary.apply_rotary_emb_qkv_(packed, cos_k, sin_k, seqlen_offsets=2)
        self.assert_same(packed, torch.stack((turned[1], turned[1], v), 2))
        kv = torch.stack((k, v), 2)
        self.assertIs(rotary.apply_rotary_emb_kv_(kv, cos_k, sin_k, seqlen_offsets=2), kv)
        self.assert_same(kv, torch.stack((turned[1], v), 2))

    def test_rotate_half(self):
        x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.assertEqual(rotary.rotate_half(x).tolist(), [-3, -4, 1, 2])
        self.assertEqual(rotary.rotate_half(x, interleaved=True).tolist(), [-2, 1, -4, 3])

    def test_the_module(self):
        module = rotary.RotaryEmbedding(6, base=500.0)
        self.assertEqual(list(module.state_dict()), [])
        angles = torch.outer(torch.arange(20.0), 500.0 ** (-torch.arange(0, 6, 2) / 6))
        cos, sin = angles.cos().double(), angles.sin().double()
        q, kv = self.randn(2, 5, 4, 8), self.randn(2, 5, 2, 2, 8)
        for offset, words in ((0, {}), (3, {}), (self.integers(2, 7), {"max_seqlen": 12})):
            first = offset.tolist() if torch.is_tensor(offset) else [offset] * 2
            wanted = [torch.stack([rotated(row, cos, sin, torch.arange(5) + first[b], False) for b, row in enumerate(x)])
                      for x in (q, kv[:, :, 0])]
            got_q, got_kv = module(q.clone(), kv.clone(), seqlen_offset=offset, **words)
            for got, one in zip((got_q, got_kv[:, :, 0]), wanted):
                torch.testing.assert_close(got, one, rtol=1e-6, atol=1e-6)
            self.assert_same(got_kv[:, :, 1], kv[:, :, 1])
        qkv = torch.cat((q, kv.flatten(2, 3)), 2)
        self.assert_same(module(qkv.clone(), num_heads_q=4)[:, :, :4], module(q.clone(), kv.clone())[0])
        # One module serves several dtypes, each with a table of its own.
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            self.assert_same(module(q.to(dtype), kv.to(dtype))[0], rotary.RotaryEmbedding(6, base=500.0)(q.to(dtype), kv.to(dtype))[0])
        self.assert_refused("max_seqlen", attnsmith.InvalidRequest, module, q, kv, self.integers(2, 7))
        self.assert_refused("scale_base", attnsmith.Unsupported, rotary.RotaryEmbedding, 6, scale_base=512)

    def test_wrong_shapes_are_refused(self):
        x, (cos, sin) = self.randn(2, 5, 3, 8), self.table()
        for name, arguments, words in (
                ("x.shape", (x[0], cos, sin), {}), ("x.shape", (x, cos, sin), {"cu_seqlens": self.integers(0, 5)}),
                ("cos.shape", (x, cos[None], sin), {}), ("sin.shape", (x, cos, sin[:5]), {}),
                ("cos.shape", (x, *self.table(half=5)), {}), ("seqlen_offsets", (x, cos, sin), {"seqlen_offsets": 16}),
                ("seqlen_offsets", (x, cos, sin), {"seqlen_offsets": -1})):
            with self.subTest(name, **words):
                self.assert_refused(name, attnsmith.InvalidRequest, rotary.apply_rotary_emb, *arguments, **words)


if __name__ == "__main__":
    unittest.main()
