"""The program of examples/python that needs JAX, traced without a GPU: its arguments fit, and its results have the
shapes that it says."""

import contextlib
import io
import runpy
import types
import unittest
import unittest.mock

try:
    import jax
except ImportError:
    raise unittest.SkipTest("JAX is not installed") from None

from support import REPOSITORY, PythonTest, attnsmith


class Examples(PythonTest):
    def test_jax_layer(self):
        printed, gpu = io.StringIO(), types.SimpleNamespace(platform="gpu")
        with contextlib.redirect_stdout(printed), unittest.mock.patch.object(jax, "devices", lambda: [gpu]), \
                unittest.mock.patch.object(jax, "jit", lambda function: lambda *arrays: jax.eval_shape(function, *arrays)), \
                unittest.mock.patch.object(attnsmith.jax, "register") as register:
            runpy.run_path(str(REPOSITORY / "examples/python/jax_layer.py"))
        self.assertEqual(printed.getvalue(), "o (2, 8, 64) of bfloat16\n")
        register.assert_called_once_with()


if __name__ == "__main__":
    unittest.main()
