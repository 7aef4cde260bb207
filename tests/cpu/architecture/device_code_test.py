"""What device code keeps in one place: PTX, barriers, the mask, and the types that O is stored as."""

import pathlib
import re
import unittest

TEMPLATES = pathlib.Path(__file__).resolve().parents[3] / "kernel_templates"


def code_of(path):
    return re.sub(r"//[^\n]*", "", path.read_text())


def files_with(pattern):
    """Names, below kernel_templates, of the files whose code has the pattern."""
    return {str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*")
            if path.suffix in (".cuh", ".h") and re.search(pattern, code_of(path))}


class DeviceCode(unittest.TestCase):

    def test_ptx_has_names(self):
        files = files_with(r"\basm\b")
        self.assertIn("common/barrier.cuh", files)
        self.assertEqual({name for name in files if not name.startswith("common/")}, set())

    def test_barriers_are_of_one_type(self):
        self.assertEqual(files_with(r"\bmbarrier\.(init|arrive|try_wait)"), {"common/barrier.cuh"})

    def test_barriers_are_counted_once(self):
        """Places, arrivals and room of barriers come from the table in abi."""
        self.assertEqual(files_with(r"\.init\((?!\))"), {"attention/persistent/pipeline.cuh"})
        self.assertEqual(files_with(r"\bconsumer_warps\b"), {"abi/attention_persistent.h"})

    def test_the_mask_is_one_function(self):
        """Whatever depends on which keys a token sees gets that from visible_keys(), which asks abi::KeyBounds."""
        self.assertEqual(files_with(r"\bseen_from\b"), {"abi/key_bounds.h", "attention/mask.cuh"})
        arguments = r"\bargs\.bounds\b"
        self.assertEqual(files_with(arguments), {"attention/mask.cuh"})
        mask = code_of(TEMPLATES / "attention/mask.cuh")
        body = mask[mask.index("KeyInterval visible_keys("):]
        body = body[:body.index("\n}")]
        self.assertEqual(len(re.findall(arguments, mask)), len(re.findall(arguments, body)))

    def test_logits_are_transformed_in_one_place(self):
        files = files_with(r"\b(softcap_scale|alibi_slopes)\b")
        self.assertEqual(files, {"abi/attention_arguments.h", "attention/logits.cuh"})

    def test_rows_end_in_one_place(self):
        """The sink, the LSE of attention, and the types of O."""
        self.assertEqual(files_with(r"\b(sinks|lse_batch_stride|o_batch_stride)\b"),
                         {"abi/attention_arguments.h", "attention/epilogue.cuh"})
        self.assertEqual(files_with(r"\bOutput::"), {"attention/epilogue.cuh"})


if __name__ == "__main__":
    unittest.main()
