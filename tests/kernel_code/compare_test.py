"""What compare.py says of two sets of kernels; that the program names each kernel once is seen with NVRTC alone."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compare  # noqa: E402


def line(kernel, target="sm_80", **changes):
    return {"kernel": kernel, "target": target, "code": "0a", "bytes": 128, "registers": 40, "spilled_bytes": 0, **changes}


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="attnsmith-compare-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def read(self, *lines, head=None):
        file = self.folder / "kernels.jsonl"
        file.write_text("\n".join(map(json.dumps, [head or {"nvrtc": "13.0.88", "kernels": len(lines)}, *lines])) + "\n")
        return compare.read(file)[1]

    def test_differences(self):
        old = self.read(line("a"), line("b"), line("c"), line("a", "sm_90"), line("gone"))
        new = self.read(line("a"), line("b", code="0b", bytes=256, registers=48, spilled_bytes=8),
                        {"kernel": "c", "target": "sm_80", "error": "error: x\nmore"}, line("a", "sm_90"), line("made"))
        self.assertEqual(compare.differences(old, old), [])
        self.assertEqual(compare.differences(old, new), [
            "changed  b, sm_80: 128 bytes, 40 registers -> 256 bytes, 48 registers, spills 8 bytes",
            "changed  c, sm_80: 128 bytes, 40 registers -> does not compile: error: x",
            "gone     gone, sm_80",
            "new      made, sm_80: 128 bytes, 40 registers"])

    def test_a_kernel_that_neither_compiles_is_no_equality(self):
        broken = self.read({"kernel": "c", "target": "sm_80", "error": "error: x"})
        self.assertEqual(len(compare.differences(broken, broken)), 1)

    def test_what_is_cut_off_or_ambiguous(self):
        with self.assertRaisesRegex(compare.Failed, "1 of 2 kernels"):
            self.read(line("a"), head={"nvrtc": "13.0.88", "kernels": 2})
        with self.assertRaisesRegex(compare.Failed, "two kernels have one name"):
            self.read(line("a"), line("a"))

    def test_wrong_arguments(self):
        for arguments, said in ((["no-such-commit"], "'no-such-commit' is no commit"), (["--help"], None)):
            error = io.StringIO()
            with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
                if said is None:
                    with self.assertRaises(SystemExit) as ended:
                        compare.main(arguments)
                    self.assertEqual(ended.exception.code, 0)
                else:
                    self.assertEqual(compare.main(arguments), 2)
                    self.assertIn(said, error.getvalue())


if __name__ == "__main__":
    unittest.main()
