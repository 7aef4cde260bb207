"""The programs of examples/python that need a GPU: on the CPU, where torch computes attnsmith's functions and "cuda" is a name of
the CPU. So their arguments fit, and what they compare is equal."""

import contextlib
import io
import runpy
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed") from None

from stand_in import functions, standing_in
from support import REPOSITORY, PythonTest, attnsmith

EXAMPLES = REPOSITORY / "examples/python"


class OnTheCpu(torch.overrides.TorchFunctionMode):
    """Tensors of "cuda" are made on the CPU."""

    def __torch_function__(self, function, types, arguments=(), words=None):
        words = {name: "cpu" if name == "device" and value is not None and "cuda" in str(value) else value
                 for name, value in (words or {}).items()}
        return function(*("cpu" if isinstance(one, torch.device) and one.type == "cuda" else one for one in arguments), **words)


def top_k(scores, k, *, row_ends):
    """The columns of the k largest scores in front of each row's end, in ascending order, then -1."""
    hidden = torch.arange(scores.shape[1]) >= row_ends[:, None]
    columns = scores.masked_fill(hidden, -torch.inf).topk(k).indices.sort().values
    return columns.int()


def append(*arguments, return_status, **words):
    """functions.append() of the stand-in, which has no status, and one that says that nothing was wrong."""
    assert return_status is True
    return functions.append(*arguments, **words), 0


class Examples(PythonTest):
    def printed_by(self, name):
        printed = io.StringIO()
        with standing_in(), OnTheCpu(), contextlib.redirect_stdout(printed), \
                unittest.mock.patch.object(torch.cuda, "is_available", lambda: True), \
                unittest.mock.patch.multiple(attnsmith, top_k=top_k, append=append):
            runpy.run_path(str(EXAMPLES / f"{name}.py"))
        return printed.getvalue()

    def test_functions(self):
        self.assertEqual(self.printed_by("functions"), "all functions ran\n")

    def test_flash_attn(self):
        self.assertRegex(self.printed_by("compat_flash_attn"), r"^out \(2, 1, 8, 64\)\nflash_attn [\d.]+ is attnsmith's: True\n$")

    def test_flashinfer(self):
        self.assertEqual(self.printed_by("compat_flashinfer"), "all wrappers ran\n")

    def test_transformers(self):
        self.assertEqual(self.printed_by("transformers_model"),
                         "logits (1, 16, 1000)\nserved: {'attention': 2}; passed on: []\n")


if __name__ == "__main__":
    unittest.main()
