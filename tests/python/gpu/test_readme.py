"""The README's Python that needs a GPU."""

import pathlib
import re
import unittest

from gpu_support import torch, why_not

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"


@unittest.skipIf(why_not(), why_not())
class Readme(unittest.TestCase):
    def test_its_second_block(self):
        text = README.read_text(encoding="utf-8")
        program = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
        names = {}
        exec(compile(program, "README.md", "exec"), names)
        q, k, v = (names[name].double().transpose(1, 2) for name in "qkv")
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(names["o"].double(), expected.transpose(1, 2), atol=1e-2, rtol=1e-2)
        self.assertEqual(names["lse"].shape, (2, 512, 32))
