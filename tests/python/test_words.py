"""The typed words against the library's table of fields, and what type checkers make of them."""

import collections.abc
import importlib.util
import os
import re
import subprocess
import sys
import typing
import unittest

from support import MODELS, PACKAGE, SMALL, PythonTest, attnsmith

from attnsmith import words

LLAMA = str(MODELS / "llama-3.1-8b.json")
NONSENSE = "no such word"

# A line that ends with "# refused" is one that a type checker must refuse; all others it must take.
SNIPPET = '''
import pathlib
from typing import Any, Dict

import attnsmith


class Config:
    def to_dict(self) -> Dict[str, Any]:
        return {}


class TorchDType:
    @property
    def itemsize(self) -> int:
        return 2


class NumpyInteger:
    def __index__(self) -> int:
        return 64


request: attnsmith.Request = {"dtype": "bf16", "head_dim": 128, "q_heads": 32, "mask": "causal", "scale": 1}
attnsmith.plan(**request, sm=90)
attnsmith.plan(head_dim=NumpyInteger(), q_heads=32, dtype=TorchDType(), window_left=None, softcap=30.0, sm="90a")
attnsmith.plan(head_dmi=128, q_heads=32)  # refused
attnsmith.plan(head_dim="128", q_heads=32)  # refused
attnsmith.plan(head_dim=128.0, q_heads=32)  # refused
attnsmith.plan(head_dim=128, q_heads=32, dtype="bf61")  # refused
attnsmith.plan(head_dim=128, q_heads=32, mask="casual")  # refused
attnsmith.plan(head_dim=128, q_heads=32, lse="yes")  # refused
attnsmith.plan(head_dim=128, q_heads=32, sm=9.5)  # refused
wrong: attnsmith.Request = {"head_dim": 128, "page_sise": 16}  # refused

runtime = attnsmith.Runtime()
runtime.prepare(**request, device=0)
runtime.prepare(head_dmi=128)  # refused
runtime.prepare_async(head_dmi=128)  # refused
runtime.plan(head_dmi=128)  # refused
attnsmith.plan_model(Config(), sm=[80, "90"], tensor_parallel=2)
attnsmith.plan_model({"model_type": "llama"}, kv="dense", page_size=16)
attnsmith.plan_model(pathlib.Path("config.json"), page_sise=16)  # refused
attnsmith.plan_model(7)  # refused
runtime.model("config.json", kv="pagde")  # refused
attnsmith.prewarm([request, {"head_dim": 64, "q_heads": 4}], sm=[80])
attnsmith.prewarm(models=["a.json", Config()], kv=["paged", "dense"], page_size=[16, 64], lse=True)
attnsmith.prewarm(request, models="config.json", kv=["pagde"])  # refused
attnsmith.prewarm({"head_dim": 64, "q_heads": 4, "lse": [False, True], "index_dtype": ("int32", "int64")})
attnsmith.prewarm([{"head_dim": 64, "kv": ["pagde"]}])  # refused
several: attnsmith.Request = {"head_dim": 64, "kv": ["paged"]}  # refused
runtime.prepare(kv=["paged"])  # refused
attnsmith.prewarm({"head_dmi": 64})  # refused
attnsmith.cache("verfiy")  # refused

q: Any = None
attnsmith.attention(q, q, q, causal=True, window=(255, None), precision="high")
attnsmith.attention(q, q, q, window=255)  # refused
attnsmith.attention(q, q, q, precision="best")  # refused
attnsmith.paged_attention(q, q, page_order="nhd")  # refused
'''


def members(annotation):
    """The types that a Union is of, None left out."""
    found = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Union else (annotation,)
    return [one for one in found if one is not type(None)]


def literal_words(annotation):
    return [word for one in members(annotation) if typing.get_origin(one) is typing.Literal
            for word in typing.get_args(one)]


def listed(accepted):
    """The names in "a, b or c"."""
    return re.findall(r"\w+", re.sub(r"\(.*?\)|\bone of\b|\bor\b", " ", accepted))


class Table(PythonTest):
    def accepted(self, function, *arguments, **options):
        with self.assertRaises(attnsmith.InvalidRequest) as caught:
            function(*arguments, **options)
        return caught.exception.accepted

    def test_the_words_of_a_request(self):
        known = listed(self.accepted(attnsmith.plan, **SMALL, zzzzzz=1, sm=90))
        self.assertEqual(sorted(known), sorted([*typing.get_type_hints(words.Request), "sm"]))

    def test_the_options_of_a_model(self):
        known = sorted(listed(self.accepted(attnsmith.plan_model, LLAMA, zzzzzz=1, sm=90)))
        self.assertEqual(sorted(typing.get_type_hints(words.ModelOptions)), known)
        self.assertEqual(sorted(typing.get_type_hints(words.ModelCoverage)), known)

    def test_their_types(self):
        """What the library says that it wants of a word is what its annotation is."""
        for name, annotation in typing.get_type_hints(words.Request).items():
            with self.subTest(word=name):
                given = {**SMALL, "head_dim": None, "head_dim_qk": 64, "head_dim_vo": 64, name: NONSENSE}
                if name == "head_dim":
                    del given["head_dim_qk"], given["head_dim_vo"]
                wanted = self.accepted(attnsmith.plan, **given, sm=90)
                if literal_words(annotation):
                    self.assertLessEqual(set(listed(wanted)), set(literal_words(annotation)))
                elif members(annotation) == [bool]:
                    self.assertEqual(wanted, "true or false")
                elif members(annotation) == [words.Integer]:
                    self.assertRegex(wanted, "integer|16, 8, 4 or 2")
                else:
                    self.assertEqual(set(members(annotation)), set(members(words.Number)))
                    self.assertEqual(wanted, "a number")

    def test_every_word_of_a_choice_is_known(self):
        for name, annotation in typing.get_type_hints(words.Request).items():
            for word in literal_words(annotation):
                with self.subTest(word=name, choice=word):
                    try:
                        attnsmith.plan(**{**SMALL, name: word, "page_size": 16 if word == "paged" else None}, sm=90)
                    except attnsmith.Unsupported:
                        pass  # a word of the vocabulary all the same
                    except attnsmith.InvalidRequest as error:
                        self.assertNotEqual(error.field, name, str(error))

    def test_words_that_may_be_several(self):
        """One of them is what it is in a request; beside it stand several of the same."""
        for several, single in ((words.Coverage, words.Request), (words.ModelCoverage, words.ModelOptions)):
            one = typing.get_type_hints(single)
            self.assertEqual(set(typing.get_type_hints(several)), set(one))
            for name, annotation in typing.get_type_hints(several).items():
                kinds = members(annotation)
                lists = [kind for kind in kinds if typing.get_origin(kind) is collections.abc.Collection]
                self.assertEqual(set(kinds) - set(lists), set(members(one[name])), name)
                for kind in lists:
                    self.assertEqual(set(members(typing.get_args(kind)[0])), set(members(one[name])), name)

    def test_the_library_takes_several_of_just_these(self):
        for name, annotation in typing.get_type_hints(words.Coverage).items():
            listed = any(typing.get_origin(kind) is collections.abc.Collection for kind in members(annotation))
            given = {**SMALL, "kv": "paged", "page_size": 16}
            value = attnsmith.plan(**given, sm=90)["request"].get(name, 64)
            given.pop("head_dim" if name.startswith("head_dim") else name, None)
            if name.startswith("head_dim_"):
                given.update(head_dim_qk=64, head_dim_vo=64)
            with self.subTest(word=name):
                try:
                    self.runtime().coverage({**given, name: [value]})
                    self.assertTrue(listed)
                except attnsmith.InvalidRequest as error:
                    self.assertFalse(listed, str(error))


def mypy_missing():
    """Why the snippet cannot be checked, or None."""
    if importlib.util.find_spec("mypy") is None:
        return "mypy is not installed"
    version = subprocess.run([sys.executable, "-m", "mypy", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"mypy (\d+)\.(\d+)", version.stdout)
    if not found or tuple(map(int, found.groups())) < (1, 8):
        return f"mypy 1.8 or newer is needed, not {version.stdout.strip() or version.stderr.strip()}"
    return None


class Checked(PythonTest):
    def test_mypy(self):
        missing = mypy_missing()
        if missing:
            self.skipTest(missing)
        program = self.folder / "program.py"
        program.write_text(SNIPPET, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(self.folder / "mypy"),
             str(PACKAGE), str(program)], capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
        lines = [line for line in result.stdout.splitlines() if ": error: " in line]
        elsewhere = [line for line in lines if "program.py:" not in line]
        self.assertEqual((elsewhere, result.stderr), ([], ""))
        refused = {int(line.split("program.py:")[1].split(":")[0]) for line in lines}
        wanted = {number for number, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# refused")}
        self.assertEqual(refused, wanted, result.stdout)


if __name__ == "__main__":
    unittest.main()
