"""The operators of torch.library: their schemas, what they give without a GPU, and what a traced call becomes."""

import contextlib
import inspect
import unittest

from support import attnsmith

try:
    import torch
except ImportError:
    torch = None
else:
    from stand_in import computing_backend, standing_in, taking

NAMES = ("attention", "varlen_attention", "paged_attention", "mla_attention", "merge_states")


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from attnsmith._operators import torch_ops
        from torch._subclasses.fake_tensor import FakeTensorMode
        cls.ops, cls.mode = torch_ops, FakeTensorMode

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
                words -= {"out", "return_status", "stream", "return_lse"}  # the last by another operator, as out
                if "window" in words:
                    words = words - {"window"} | {"window_left", "window_right"}
                if "kv_cache" in words:
                    words |= {"v_cache"}
                for operator in (name, f"{name}_with_lse", f"{name}_out", f"{name}_out_with_lse"):
                    schema = getattr(torch.ops.attnsmith, operator).default._schema
                    written = {"out"} if "_out" in operator else set()
                    self.assertEqual({argument.name for argument in schema.arguments}, words | written)
                    self.assertEqual(self.written(schema), written)
        words = set(inspect.signature(attnsmith.append).parameters) - {"return_status", "stream"}
        schema = torch.ops.attnsmith.append.default._schema
        self.assertEqual({argument.name for argument in schema.arguments}, words)
        self.assertEqual(self.written(schema), {"k_cache", "v_cache", "kpe_cache", "q_out", "k_scale", "v_scale"})

    def written(self, schema):
        return {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}

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

    def compiled_and_not(self, function, *tensors):
        """What a function gives and what it has written, compiled in one graph, and by itself."""
        torch._dynamo.reset()
        graphs, results = [], []
        for call in (torch.compile(function, backend=computing_backend(graphs), fullgraph=True), function):
            given = [tensor.clone() for tensor in tensors]
            with standing_in() if call is function else contextlib.nullcontext():
                results.append((call(*given), given))
        return graphs, results

    def test_what_looks_at_operators_sees_them(self):
        """make_fx and fake tensors, which would take a launch for nothing at all."""
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        q, k = torch.randn(2, 5, 4, 16).half(), torch.randn(2, 7, 2, 16).half()
        graph = make_fx(lambda q, k: attnsmith.attention(q, k, k, causal=True) * 2, tracing_mode="fake")(q, k).graph
        self.assertIn(torch.ops.attnsmith.attention.default, [node.target for node in graph.nodes])
        with FakeTensorMode():
            q = torch.empty(2, 4, 5, 16, dtype=torch.float16, device="cuda")
            o = attnsmith.torch.scaled_dot_product_attention(q, q, q)
            self.assertEqual((o.shape, o.transpose(1, 2).is_contiguous()), (q.shape, True))

    def test_what_is_written_to(self):
        def new(*shape):
            return torch.randn(*shape, generator=generator).bfloat16()

        def out(q, k, o):
            given = attnsmith.attention(q, k, k, out=o, causal=True)
            return given + 1, attnsmith.attention(q * 2, k, k, out=o, return_lse=True)[1]

        def merge(states, lse):
            o, merged = attnsmith.merge_states([states, states * 2], [lse, lse + 1])
            return o, merged, attnsmith.merge_states(torch.stack([states, states], 1), torch.stack([lse, lse], 1), return_lse=False)

        def append(k, v, k_cache, v_cache, slots, q, positions, table):
            turned = attnsmith.append(k, v, k_cache, v_cache, slot_mapping=slots, page_order="NHD", q=q, positions=positions,
                                      rope_table=table, rope="half")
            again = attnsmith.append(q=q, q_out=q, positions=positions, rope_table=table, rope="half")
            return turned, again + 1

        generator = torch.Generator().manual_seed(5)
        slots = torch.tensor([3, -1, 17])
        cases = {
            out: ([new(2, 5, 4, 64), new(2, 9, 2, 64), new(2, 5, 4, 64)], ["attention_out", "attention_out_with_lse"]),
            merge: ([new(5, 4, 64), new(5, 4).float()], ["merge_states_with_lse", "merge_states"]),
            append: ([new(3, 2, 64), new(3, 2, 64), new(3, 8, 2, 64), new(3, 8, 2, 64), slots, new(3, 4, 64), slots.abs(),
                      new(32, 16)], ["append", "append"])}
        for function, (tensors, operators) in cases.items():
            with self.subTest(function.__name__):
                graphs, results = self.compiled_and_not(function, *tensors)
                self.assertEqual(graphs, [[f"{operator}.default" for operator in operators]])
                torch.testing.assert_close(*results, rtol=0, atol=0)

    def test_an_output_in_memory_of_an_input(self):
        """As Inductor has it for out = k.clone() where k is not used again: no kernel is to write what it still reads."""
        memory = torch.arange(24.0).view(2, 12)
        for inputs in ((memory,), (None, [torch.ones(3), memory[1]])):
            out = memory[:1, 3:9].t()
            given = []

            def compute(to):
                given.append(to)
                to.copy_(torch.full_like(to, 7))
                self.assertEqual(memory[0, 3], 3)
                return "lse"

            self.assertEqual(self.ops.into(out, inputs, compute), "lse")
            self.assertNotEqual(given[0].untyped_storage().data_ptr(), memory.untyped_storage().data_ptr())
            self.assertEqual((given[0].stride(), out.unique().tolist()), (out.stride(), [7]))
            self.assertEqual(self.ops.into(out, (None, torch.ones(3)), lambda to: to is out), True)
            memory.copy_(torch.arange(24.0).view(2, 12))

    def test_scaled_dot_product_attention(self):
        """Is traced too, and counts causal from the top as torch does."""
        sdpa = attnsmith.torch.scaled_dot_product_attention
        for lead, q_len, kv_len, causal in (((2, 4), 5, 5, True), ((3, 2, 4), 5, 7, False), ((4,), 3, 7, True), ((2, 4), 7, 3, True),
                                            ((), 5, 5, True), ((2, 4), 0, 5, False)):
            with self.subTest(lead=lead, q_len=q_len, kv_len=kv_len, causal=causal):
                torch._dynamo.reset()
                q, k, v = (torch.randn(*lead, length, 16) for length in (q_len, kv_len, kv_len))
                graphs = []
                compiled = torch.compile(lambda q, k, v: sdpa(q, k, v, is_causal=causal), fullgraph=True,
                                         backend=computing_backend(graphs))
                with taking(torch.float32):
                    got = compiled(q, k, v)
                self.assertEqual(graphs, [["attention.default"]])
                torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal))
        q = torch.empty(2, 4, 5, 16, dtype=torch.float16, device="meta")
        for key, value, name in (((4, 5, 16), (4, 5, 16), "key"), ((1, 4, 5, 16), (1, 4, 5, 16), "key"),
                                 ((2, 4, 9, 16), (2, 4, 5, 16), "value")):
            with self.assertRaisesRegex(attnsmith.InvalidRequest, f"{name}.shape"):
                attnsmith.torch._traced(q, q.new_empty(key), q.new_empty(value), True, None, True)
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            q = torch.empty(2, 4, 3, 16, dtype=torch.bfloat16, device="cuda")
            for words in ({"is_causal": 1}, {"enable_gqa": "x"}):
                with self.assertRaisesRegex(attnsmith.InvalidRequest, f"^{list(words)[0]}: "):
                    attnsmith.torch.scaled_dot_product_attention(q, q, q, **words)

    def test_an_export_says_what_is_written_to(self):
        class Module(torch.nn.Module):
            def __init__(self, cache):
                super().__init__()
                self.register_buffer("k_cache", cache)
                self.register_buffer("v_cache", cache.clone())

            def forward(self, q, k, slots):
                attnsmith.append(k, k, self.k_cache, self.v_cache, slot_mapping=slots, page_order="NHD")
                return attnsmith.attention(q, k[None], k[None])

        with self.mode():
            module = Module(self.tensor(4, 16, 2, 64))
            tensors = (self.tensor(1, 3, 4, 64), self.tensor(3, 2, 64), self.tensor(3, dtype=torch.int64))
            program = torch.export.export(module, tensors).run_decompositions()
        self.assertEqual(set(program.graph_signature.buffers_to_mutate.values()), {"k_cache", "v_cache"})
        self.assertIn("attnsmith.append.default", str(program.graph))

    def test_autocast_takes_fp32(self):
        with self.mode():
            q, k = self.tensor(2, 8, 4, 64, dtype=torch.float32), self.tensor(2, 9, 2, 64)
            self.assertEqual(torch.ops.attnsmith.attention(q, k, k).dtype, torch.float32)  # which a GPU refuses
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            torch.set_autocast_enabled("cuda", True)  # torch.autocast would not without a GPU
            self.addCleanup(torch.set_autocast_enabled, "cuda", False)
            self.assertEqual(torch.ops.attnsmith.attention(q, k, k).dtype, torch.bfloat16)

    def test_what_is_written_to_counts_as_a_new_version(self):
        with self.mode():
            q, out = self.tensor(2, 8, 4, 64), self.tensor(2, 8, 4, 64)
            version = out._version
            torch.ops.attnsmith.attention_out(out, q, q, q)
            self.assertEqual(out._version, version + 1)

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

    def test_transforms_are_refused(self):
        """Under which a gradient of zero would come out, with no error."""
        import torch._subclasses.fake_tensor
        operator = torch.ops.attnsmith.attention
        with torch._subclasses.fake_tensor.FakeTensorMode():
            q = torch.empty(1, 8, 4, 64, device="cuda", dtype=torch.float16)
            for function in (operator, attnsmith.attention):
                for transform in (lambda q, function=function: torch.func.grad(lambda q: function(q, q, q).sum())(q),
                                  lambda q, function=function: torch.func.jvp(lambda q: function(q, q, q), (q,), (q,)),
                                  lambda q, function=function: torch.func.vjp(lambda q: function(q, q, q), q)):
                    with self.assertRaisesRegex(attnsmith.Unsupported, "torch.func's transforms of attnsmith.attention"):
                        transform(q)
            self.assertEqual(torch.func.functionalize(lambda q: operator(q, q, q))(q).shape, q.shape)

    def test_a_window_that_is_no_pair_is_refused_by_name(self):
        with self.mode():
            tensors = [self.tensor(2, 8, heads, 64) for heads in (4, 2, 2)]
            for window in (255, "ab", (5,), ()):
                with self.subTest(window=window), self.assertRaisesRegex(attnsmith.InvalidRequest, "^window: "):
                    self.ops.TRACED["attention"](*tensors, window=window)

    def test_what_no_graph_has_is_refused_by_name(self):
        with self.mode():
            tensors = [self.tensor(2, 8, heads, 64) for heads in (4, 2, 2)]
            for name, words in (("return_status", {"return_status": True}), ("stream", {"stream": 7})):
                with self.subTest(name), self.assertRaisesRegex(attnsmith.Unsupported, f"^{name} is not taken"):
                    self.ops.TRACED["attention"](*tensors, **words)


if __name__ == "__main__":
    unittest.main()
