"""Consistency "bitwise" across processes, tuning tables and the functions' words. Its arithmetic is the GPU suite's."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from gpu_support import GpuTest, torch

import attnsmith

SCRIPT = """
import hashlib, torch, attnsmith
generator = torch.Generator().manual_seed(5)
draw = lambda *shape: torch.randn(*shape, generator=generator).to("cuda", torch.bfloat16)
q, k, v = draw(3, 9, 8, 128), draw(3, 1500, 2, 128), draw(3, 1500, 2, 128)
o, lse = attnsmith.attention(q, k, v, causal=True, consistency="bitwise", return_lse=True)
print(hashlib.sha256(o.view(torch.int16).cpu().numpy().tobytes() + lse.cpu().numpy().tobytes()).hexdigest())
"""


class Bitwise(GpuTest):
    def digest(self, **environment):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_processes_and_tuning_tables(self):
        first = self.digest()
        self.assertEqual(len(first), len(hashlib.sha256().hexdigest()))
        self.assertEqual(self.digest(), first)
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "tuning.json"
            table.write_text(self.tuning_table())
            self.assertEqual(self.digest(ATTNSMITH_TUNING=str(table)), first)

    def tuning_table(self):
        """A user's, of other tiles than the library's."""
        root = pathlib.Path(__file__).resolve().parents[3]
        tables = sorted((root / "runtime/planner/tuning").glob("*.json"))
        self.assertTrue(tables)
        table = json.loads(tables[0].read_text())
        table["entries"] = table["entries"][::-1]
        return json.dumps(table)

    def test_steps_are_a_prefill(self):
        q, k, v = (self.randn(1, 700, heads, 128) for heads in (8, 2, 2))
        words = dict(causal=True, consistency="bitwise", return_lse=True)
        o, lse = attnsmith.attention(q, k, v, **words)
        for end in (1, 256, 257, 513, 700):
            step, step_lse = attnsmith.attention(q[:, end - 1:end], k[:, :end], v[:, :end], **words)
            self.assertTrue(torch.equal(step[0, 0], o[0, end - 1]))
            self.assertTrue(torch.equal(step_lse[0, 0], lse[0, end - 1]))

    def test_high_precision_is_refused_by_name(self):
        q, k, v = (self.randn(1, 9, 2, 64) for _ in range(3))
        with self.assertRaises(attnsmith.Unsupported) as caught:
            attnsmith.attention(q, k, v, consistency="bitwise", precision="high")
        self.assertIn("bitwise", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
