"""tools/bench/kernel_variants.py launches the wgmma kernel as the library does: the same arguments, the same grid."""

import ctypes
import sys
import unittest

from launch_case import LaunchTest
from support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tools/bench"))
import kernel_variants  # noqa: E402

ATTENTION, TAIL = kernel_variants.argument_types()
MAPS, REST, END = kernel_variants.places(ATTENTION, TAIL)
# A kernel that is planned for these is wgmma's and not split, and serves any others.
PLANNED = {"batch": 8, "q_len": 4096, "kv_len": 4096}


def sizes_of(head_dim):
    return [*kernel_variants.CHECKED, *(kernel_variants.timed_sizes(head_dim, n) for n in (512, 2048, 16384))]


class Arguments(LaunchTest):
    def launch(self, head_dim, sizes, causal):
        """The kernel that planning takes, as the script names it, and the stub's record of its launch."""
        batch, q_len, kv_len, heads, kv_heads = sizes
        kernel = self.rt.prepare(dtype="bf16", head_dim=head_dim, q_heads=heads, kv_heads=kv_heads,
                                 mask="causal" if causal else "full", **PLANNED)
        plan = kernel.plan()
        attention = plan["kernels"][0]
        self.assertEqual((attention["backend"], plan["split_kv"]["policy"]), ("wgmma", "none"))
        q, o = (self.array(batch, q_len, heads, head_dim) for _ in range(2))
        k, v = (self.array(batch, kv_len, kv_heads, head_dim) for _ in range(2))
        self.state.param_bytes = END
        self.assertEqual(self.launched(kernel.bind(q, k, v, o).launch)[0], 1)
        named = (head_dim, attention["tile_q"], attention["tile_kv"], attention["stages"])
        return named, self.state.last_launch, plan["device"]["sm_count"]

    def test_launches(self):
        for head_dim in (64, 128):
            for sizes in sizes_of(head_dim):
                for causal in (False, True):
                    with self.subTest(head_dim=head_dim, sizes=sizes, causal=causal):
                        kernel, launch, sms = self.launch(head_dim, sizes, causal)
                        values, grid = kernel_variants.launch_values(kernel, sizes, causal, sms)
                        self.assertEqual((list(launch.grid), list(launch.block)),
                                         ([grid, 1, 1], [kernel_variants.threads_of(kernel), 1, 1]))
                        for structure, place in ((ATTENTION, 0), (TAIL, REST)):
                            self.compare(structure.from_buffer(launch.parameter, place), values)

    def compare(self, launched, values):
        wanted = type(launched)()
        kernel_variants.fill(wanted, values)
        for name, kind in launched._fields_:
            if kind is ctypes.c_void_p or name.endswith("_stride"):
                continue
            found, value = getattr(launched, name), getattr(wanted, name)
            if issubclass(kind, ctypes.Structure):
                self.assertEqual(bytes(found), bytes(value), msg=name)
            else:
                self.assertAlmostEqual(found, value, delta=1e-6 * abs(value), msg=name)


if __name__ == "__main__":
    unittest.main()
