"""The operators of torch.library: their schemas, what they give without a GPU, and what a traced call becomes."""

import inspect
import unittest

from support import attnsmith

try:
    import torch
except ImportError:
    torch = None

NAMES = ("attention", "varlen_attention", "paged_attention", "mla_attention")


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from attnsmith import _torch_ops
        from torch._subclasses.fake_tensor import FakeTensorMode
        cls.ops, cls.mode = _torch_ops, FakeTensorMode

    def tensor(self, *shape, dtype=None, **words):
        return torch.empty(shape, dtype=dtype or torch.bfloat16, device="cuda", **words)

    def exported(self, function, tensors, dynamic=None):
        class Module(torch.nn.Module):
            def forward(self, *arguments):
                return function(*arguments)

        program = torch.export.export(Module(), tuple(tensors), dynamic_shapes=dynamic and (dynamic,))
        return program.graph, [node.target for node in program.graph.nodes if "attnsmith" in str(node.target)]

    def test_schemas_have_every_word_of_the_functions(self):
        for name in NAMES:
            with self.subTest(name):
                words = set(inspect.signature(getattr(attnsmith, name)).parameters)
                words -= {"out", "return_status", "stream", "return_lse"}
                if "window" in words:
                    words = words - {"window"} | {"window_left", "window_right"}
                if "kv_cache" in words:
                    words |= {"v_cache"}
                for operator in (name, f"{name}_with_lse"):
                    schema = getattr(torch.ops.attnsmith, operator).default._schema
                    self.assertEqual({argument.name for argument in schema.arguments}, words)
                    self.assertFalse(schema.is_mutable)

    def test_what_is_given_without_a_gpu(self):
        with self.mode():
            q = self.tensor(2, 8, 4, 64)
            k, v = self.tensor(2, 9, 2, 64), self.tensor(2, 9, 2, 32)
            o = torch.ops.attnsmith.attention(q, k, v, causal=True)
            self.assertEqual((tuple(o.shape), o.dtype), ((2, 8, 4, 32), torch.bfloat16))
            o, lse = torch.ops.attnsmith.attention_with_lse(q, k, v, o_dtype="fp32")
            self.assertEqual((tuple(o.shape), o.dtype), ((2, 8, 4, 32), torch.float32))
            self.assertEqual((tuple(lse.shape), lse.dtype), ((2, 8, 4), torch.float32))
            lse = torch.ops.attnsmith.attention_with_lse(q, k, v, lse_order="HND")[1]
            self.assertEqual(tuple(lse.shape), (2, 4, 8))
            table = self.tensor(2, 5, dtype=torch.int32)
            pages = self.tensor(7, 16, 2, 64)
            o = torch.ops.attnsmith.paged_attention(self.tensor(2, 4, 64), pages, self.tensor(7, 16, 2, 32), table,
                                                    self.tensor(2, dtype=torch.int32))
            self.assertEqual(tuple(o.shape), (2, 4, 32))
            o = torch.ops.attnsmith.paged_attention(q, self.tensor(7, 2, 16, 2, 64), None, table)
            self.assertEqual(tuple(o.shape), (2, 8, 4, 64))
            latents = self.tensor(7, 64, 576)
            for q, words, columns in ((self.tensor(2, 16, 576), {}, 512),
                                      (self.tensor(2, 16, 576), {"head_dim_ckv": 448}, 448),
                                      (self.tensor(2, 16, 320), {"q_pe": self.tensor(2, 16, 64)}, 320)):
                self.assertEqual(torch.ops.attnsmith.mla_attention(q, latents, table, scale=0.1, **words).shape[-1],
                                 columns)

    def test_a_traced_call_is_one_operator(self):
        def call(q, k, v):
            o, lse = attnsmith.attention(q * 2, k, v, causal=True, window=(3, None), return_lse=True,
                                         o_dtype=torch.float32)
            return o + lse.unsqueeze(-1)

        with self.mode():
            tensors = [self.tensor(2, 8, heads, 64) for heads in (4, 2, 2)]
            length, keys = torch.export.Dim("length"), torch.export.Dim("keys")
            graph, operators = self.exported(call, tensors, ({1: length}, {1: keys}, {1: keys}))
        self.assertEqual(operators, [torch.ops.attnsmith.attention_with_lse.default])
        (node,) = [node for node in graph.nodes if node.target in operators]
        self.assertEqual(node.args[3:6], (True, 3, None))
        self.assertIn("fp32", node.args)

    def test_pages_and_latents_are_traced(self):
        with self.mode():
            lies = [self.tensor(2, 5, dtype=torch.int32), self.tensor(2, dtype=torch.int32)]
            pair = [self.tensor(2, 4, 64), self.tensor(7, 16, 2, 64), self.tensor(7, 16, 2, 64)]
            self.assertEqual(
                self.exported(lambda q, k, v, table, lens: attnsmith.paged_attention(q, (k, v), table, lens),
                              pair + lies)[1], [torch.ops.attnsmith.paged_attention.default])
            latents = [self.tensor(2, 16, 576), self.tensor(7, 64, 576)]
            self.assertEqual(
                self.exported(lambda q, ckv, table, lens: attnsmith.mla_attention(q, ckv, table, lens, scale=0.1),
                              latents + lies)[1], [torch.ops.attnsmith.mla_attention.default])

    def test_compiled_for_any_lengths_once(self):
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return lambda *arguments: (torch.zeros(1),)

        compiled = torch.compile(lambda q, k: attnsmith.attention(q, k, k), backend=backend, fullgraph=True, dynamic=True)
        for lengths in ((5, 7), (6, 9), (8, 4)):
            compiled(*[torch.zeros(2, length, 3, 64) for length in lengths])
        self.assertEqual(len(graphs), 1)

    def test_tensors_of_the_cpu_are_refused_by_name(self):
        with self.assertRaisesRegex(attnsmith.InvalidRequest, r"q\.device"):
            torch.ops.attnsmith.attention(*[torch.zeros(2, 8, 2, 64, dtype=torch.bfloat16)] * 3)

    def test_gradients_and_vmap_are_refused(self):
        with self.mode():
            q, k = self.tensor(2, 8, 4, 64, requires_grad=True), self.tensor(2, 8, 2, 64)
            with self.assertRaisesRegex(attnsmith.InvalidRequest, r"q\.requires_grad"):
                torch.ops.attnsmith.attention(q, k, k)
            with torch.no_grad():
                torch.ops.attnsmith.attention(q, k, k)
        with self.assertRaisesRegex(attnsmith.Unsupported, "vmap over attnsmith.attention"):
            torch.vmap(torch.ops.attnsmith.attention)(*[torch.zeros(3, 2, 8, 2, 64)] * 3)

    def test_what_no_graph_has_is_refused_by_name(self):
        with self.mode():
            tensors = [self.tensor(2, 8, heads, 64) for heads in (4, 2, 2)]
            for name, words in (("out", {"out": tensors[0]}), ("return_status", {"return_status": True}),
                                ("stream", {"stream": 7})):
                with self.subTest(name), self.assertRaisesRegex(attnsmith.Unsupported, f"^{name} is not taken"):
                    self.ops.TRACED["attention"](*tensors, **words)


if __name__ == "__main__":
    unittest.main()
