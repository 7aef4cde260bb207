"""The README's Python that needs a GPU."""

import pathlib
import re
import unittest

from gpu_support import torch, why_not

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"


@unittest.skipIf(why_not(), why_not())
class Readme(unittest.TestCase):
    def test_its_program(self):
        program, = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        causal, rest = program.split("o, lse = ")
        names = {}
        exec(compile(causal, "README.md", "exec"), names)
        attend = torch.nn.functional.scaled_dot_product_attention
        q, k, v = (names[name].double().transpose(1, 2) for name in "qkv")
        torch.testing.assert_close(names["o"].double(), attend(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2),
                                   atol=1e-2, rtol=1e-2)
        exec(compile("o, lse = " + rest, "README.md", "exec"), names)
        self.assertEqual(names["lse"].shape, (2, 512, 32))
        for sequence, length in enumerate(names["kv_lens"].tolist()):
            k, v = (names[cache][names["page_table"][sequence].long()].flatten(0, 1)[:length].double().transpose(0, 1)
                    for cache in ("k_pages", "v_pages"))
            expected = attend(names["q"][sequence].double()[:, None], k, v, enable_gqa=True)[:, 0]
            torch.testing.assert_close(names["o"][sequence].double(), expected, atol=1e-2, rtol=1e-2)


if __name__ == "__main__":
    unittest.main()
