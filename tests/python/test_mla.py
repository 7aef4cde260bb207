"""mla_attention(), and kernels of op "mla" step by step: which request and which tensors reach the library, and what is
refused by which name. Through the stub of the driver, which runs no kernel."""

import itertools
import unittest
from unittest import mock

from launch_case import LaunchTest
from support import attnsmith

from attnsmith._c_api import abi

# Few columns and heads, since these kernels are quicker to compile; and what a call has to give besides its tensors.
CKV, KPE, HEADS = 64, 8, 4
SCALE = {"scale": 0.125}
SMALL = {"op": "mla", "head_dim_ckv": CKV, "head_dim_kpe": KPE, "q_heads": HEADS, **SCALE}


class LatentTest(LaunchTest):
    def call(self, *tensors, **options):
        """What a call gives, the normalised request of its kernel, and the tensors that reach the library."""
        attnsmith._calls.dispatch._current = None  # what earlier calls found is not looked at
        dispatch = attnsmith._calls.dispatch.dispatch_now()
        run, reached = dispatch.run, {}

        def seen(kernel, tensors, batch, *rest):
            for struct, names in ((abi.Tensors.from_address(tensors.value), abi.TENSOR_FIELDS),
                                  (abi.Batch.from_address(batch.value), abi.BATCH_FIELDS)):
                for name in names:
                    if getattr(struct, name):
                        tensor = abi.Tensor.from_address(getattr(struct, name))
                        reached[name] = tensor.data, tuple(tensor.shape[:tensor.ndim])
            return run(kernel, tensors, batch, *rest)
        dispatch.run = seen
        count, result = self.launched(attnsmith.mla_attention, *tensors, **{**SCALE, **options})
        self.assertEqual(count, 1)
        (entry,) = dispatch.prepared.values()
        return result, entry.kernel.spec, reached

    def refused(self, field, *tensors, **options):
        return self.assert_refused(field, attnsmith.mla_attention, *tensors, **{**SCALE, **options})

    def parts(self, name, name_of_position, rows, ckv=CKV, kpe=KPE, **options):
        """A tensor of these rows with all columns, or two that have them apart."""
        yield {name: self.array(*rows, ckv + kpe, **options)}
        yield {name: self.array(*rows, ckv, **options), name_of_position: self.array(*rows, kpe, **options)}

    def ints(self, *values):
        return self.array(len(values), dtype="int32", values=values)

    def table(self):
        """Of two sequences, in four pages of 16."""
        return self.array(2, 2, dtype="int32", values=[0, 1, 2, 0])

    def lens(self):
        return self.ints(20, 3)

    def compressed(self):
        return {"page_indptr": self.ints(0, 2, 3), "page_indices": self.ints(0, 1, 2), "last_page_len": self.ints(4, 3)}

    def storages(self):
        """How latents may lie: kv of the request, the rows of ckv, and what says where the sequences are."""
        for head in ((), (1,)):
            yield "dense", (2, 24, *head), {}
            yield "dense", (2, 24, *head), {"kv_lens": self.lens()}
            yield "ragged", (30, *head), {"kv_indptr": self.ints(0, 5, 30)}
            yield "paged", (4, 16, *head), {"page_table": self.table(), "kv_lens": self.lens()}
            yield "paged", (4, 16, *head), self.compressed()
        rows = self.array(7, 2, dtype="int32", values=[0] * 14)
        yield "paged", (4, 16), {"page_table": rows, "kv_lens": self.lens(), "table_rows": self.ints(6, 0)}


class Calls(LatentTest):
    def queries(self):
        """The rows of q, and what says whose they are."""
        yield (2, HEADS), {}
        yield (2, 3, HEADS), {}
        yield (2, 3, HEADS), {"q_lens": self.ints(3, 1)}
        yield (7, HEADS), {"q_indptr": self.ints(0, 5, 7)}

    def test_what_reaches_the_library(self):
        for (kv, latent_rows, latents_lie), (query_rows, queries_lie) in itertools.product(
                self.storages(), self.queries()):
            for latents, queries in itertools.product(self.parts("ckv", "kpe", latent_rows),
                                                      self.parts("q", "q_pe", query_rows)):
                given = {**queries, **latents, **latents_lie, **queries_lie}
                with self.subTest(kv=kv, ckv=latent_rows, q=query_rows, given=sorted(given)):
                    told = {} if {"q_pe", "kpe"} & set(given) else {"head_dim_ckv": CKV}
                    (o, lse), spec, reached = self.call(**given, **told, causal=True, return_lse=True)
                    self.assertEqual((o.shape, o.dtype), ((*query_rows, CKV), "bf16"))
                    self.assertEqual((lse.shape, lse.dtype), (query_rows, "fp32"))
                    wanted = {**SMALL, "dtype": "bf16", "kv_heads": 1, "mask": "causal", "lse": True, "kv": kv,
                              "page_size": 16 if kv == "paged" else 0, "index_dtype": "int32"}
                    self.assertEqual({name: spec.get(name) or 0 for name in wanted}, wanted)
                    given = {**given, "k": given["ckv"], "o": o, "lse": lse}
                    del given["ckv"]
                    tensors = {name: (array.data, array.shape) for name, array in given.items()}
                    if query_rows == (2, HEADS):  # one query each, for which the library has an axis
                        for name in {"q", "q_pe", "o", "lse"} & set(tensors):
                            pointer, shape = tensors[name]
                            tensors[name] = pointer, (2, 1, *shape[1:])
                    self.assertEqual(reached, tensors)

    def test_the_columns_of_models(self):
        """Of joined tensors alone nothing tells how many columns the latent has: 512, as most models have, or what is
        given."""
        q, ckv = self.array(2, 16, 576), self.array(2, 24, 576)
        for options in ({}, {"head_dim_ckv": 512}):
            o, spec, _ = self.call(q, ckv, **options)
            self.assertEqual((o.shape, spec["head_dim_ckv"], spec["head_dim_kpe"]), ((2, 16, 512), 512, 64))
        q, ckv = self.array(2, HEADS, CKV + KPE), self.array(2, 24, CKV + KPE)
        o, spec, _ = self.call(q, ckv, head_dim_ckv=CKV)
        self.assertEqual((o.shape, spec["head_dim_ckv"], spec["head_dim_kpe"]), ((2, HEADS, CKV), CKV, KPE))

    def test_latents_without_a_position(self):
        o, spec, reached = self.call(self.array(2, HEADS, CKV), self.array(2, 24, CKV), head_dim_ckv=CKV)
        self.assertEqual((o.shape, spec["head_dim_ckv"], spec["head_dim_kpe"]), ((2, HEADS, CKV), CKV, 0))
        self.assertEqual(set(reached), {"q", "k", "o"})

    def tensors(self, **options):
        (apart,) = list(self.parts("q", "q_pe", (2, HEADS), **options))[1:]
        return {**apart, **list(self.parts("ckv", "kpe", (2, 24), **options))[1]}

    def test_options(self):
        given = self.tensors()
        plain = self.call(**given)[1]
        self.assertEqual((plain["mask"], plain["lse"], plain["consistency"], plain["o_dtype"]),
                         ("full", False, "standard", "bf16"))
        o, spec, _ = self.call(**given, o_dtype="fp32")
        self.assertEqual((o.dtype, spec), ("fp32", {**plain, "o_dtype": "fp32"}))
        out = self.array(2, HEADS, CKV, dtype="fp32")
        result, spec, _ = self.call(**given, out=out)
        self.assertIs(result, out)
        self.assertEqual(spec["o_dtype"], "fp32")
        self.assertEqual(self.call(**self.tensors(dtype="fp16"))[1],
                         {**plain, "dtype": "fp16", "o_dtype": "fp16", "kv_dtype": "fp16"})
        (_, status), _, _ = self.call(**given, return_status=True)
        self.assertFalse(attnsmith.CallStatus(status))
        stream = self.stream()
        self.call(**given, stream=stream)
        self.assertEqual(self.state.last_launch.stream, stream)

    def test_consistency(self):
        spec = self.call(self.array(2, 16, 576), self.array(2, 24, 576), consistency="bitwise")[1]
        self.assertEqual(spec["consistency"], "bitwise")

    def test_alignment_is_that_of_all_parts(self):
        for name in ("q", "q_pe", "ckv", "kpe"):
            given = self.tensors()
            given[name] = self.array(*given[name].shape, offset=8)
            with self.subTest(tensor=name):
                self.assertEqual(self.call(**given)[1]["alignment"], 8)
        lens = self.array(2, dtype="int32", values=[20, 3], offset=4)  # whose own does not count
        self.assertEqual(self.call(**self.tensors(), kv_lens=lens)[1]["alignment"], 16)

    def test_layouts_that_are_known(self):
        """Calls that find what an earlier one made launch with their own pointers."""
        attnsmith._calls.dispatch._current = None
        self.state.param_bytes = 64
        for kept in (0, 1, 1):
            given = self.tensors()
            o = attnsmith.mla_attention(**given, **SCALE)
            self.assertEqual(len(attnsmith._calls.dispatch.dispatch_now().recipes), kept)
            self.assertEqual(self.launched_at("q", "q_pe", "v", "k", "o"),
                             [given[name].data for name in ("q", "q_pe", "ckv", "kpe")] + [o.data])
        table, lens = self.table(), self.lens()
        for _ in range(3):
            q, ckv = self.array(2, HEADS, CKV + KPE), self.array(4, 16, 1, CKV + KPE)
            o = attnsmith.mla_attention(q, ckv, table, lens, head_dim_ckv=CKV, **SCALE)
            self.assertEqual(self.launched_at("q", "q_pe", "v", "k", "o"), [q.data, 0, ckv.data, 0, o.data])

    def test_bounds(self):
        """What one sequence has at most: by the shapes, or less where it is said."""
        table, lens, ckv = self.table(), self.lens(), self.array(4, 16, CKV + KPE)
        q, q_indptr = self.array(7, HEADS, CKV + KPE), self.ints(0, 5, 7)
        for given, wanted in (({}, (7, 32)), ({"max_q_len": 0, "max_kv_len": 0}, (7, 32)),
                              ({"max_q_len": 5, "max_kv_len": 20}, (5, 20))):
            seen = []
            fill = attnsmith._tensors.blocks.AttentionBlock.fill

            def filled(block, views, *bounds):
                seen.append(bounds[:2])
                fill(block, views, *bounds)
            attnsmith._calls.dispatch._current = None
            with mock.patch.object(attnsmith._tensors.blocks.AttentionBlock, "fill", filled):
                attnsmith.mla_attention(q, ckv, table, lens, q_indptr=q_indptr, head_dim_ckv=CKV, **SCALE, **given)
            self.assertEqual(seen, [wanted])


class Refusals(LatentTest):
    def setUp(self):
        super().setUp()
        self.q, self.q_pe = self.array(2, 3, HEADS, CKV), self.array(2, 3, HEADS, KPE)
        self.ckv, self.kpe = self.array(4, 16, CKV), self.array(4, 16, KPE)
        self.joined_q, self.joined = self.array(2, 3, HEADS, CKV + KPE), self.array(4, 16, CKV + KPE)
        self.lies = {"page_table": self.table(), "kv_lens": self.lens()}
        self.apart = {"q_pe": self.q_pe, "kpe": self.kpe}

    def test_the_scale_has_no_default(self):
        for options in ({}, {"scale": None}):
            error = self.assert_refused("scale", attnsmith.mla_attention, self.q, self.ckv, **self.apart, **self.lies,
                                        **options)
            self.assertEqual(error.value, "nothing")
            self.assertIn("1/sqrt(192)", error.accepted)
        for wrong in (0.0, -1.0, float("nan"), True, "0.1"):
            self.refused("scale", self.q, self.ckv, **self.apart, **self.lies, scale=wrong)

    def test_columns(self):
        words = {**self.lies, "head_dim_ckv": CKV}
        self.assertIn("or q_pe with those", self.refused("q.shape", self.q, self.joined, **words).accepted)
        self.assertIn("or kpe with those", self.refused("ckv.shape", self.joined_q, self.ckv, **words).accepted)
        self.refused("q.shape", self.joined_q, self.ckv, **self.apart, **words)
        self.refused("ckv.shape", self.q, self.joined, **self.apart, **words)
        self.refused("ckv.shape", self.q, self.array(4, 16, 2 * CKV), **self.apart, **self.lies)
        self.refused("kpe.shape", self.q, self.ckv, q_pe=self.q_pe, kpe=self.array(4, 16, 2 * KPE), **self.lies)
        self.refused("q.shape", self.q, self.ckv, **self.apart, **{**words, "head_dim_ckv": 2 * CKV})
        error = self.refused("q.shape", self.joined_q, self.joined, **self.lies)  # 512 are not there
        self.assertIn("unless head_dim_ckv is given", error.accepted)
        error = self.refused("ckv.shape", self.joined_q, self.ckv, **self.apart, **self.lies)
        self.assertIn("as q has", error.accepted)
        for columns in (CKV + 1, 520):
            with self.assertRaises(attnsmith.Unsupported):
                attnsmith.mla_attention(self.array(2, HEADS, columns), self.array(4, 16, columns), **self.lies,
                                        head_dim_ckv=columns, **SCALE)

    def test_whole_rows_of_656_bytes_are_told_their_views(self):
        error = self.assert_refused("ckv.shape", attnsmith.mla_attention, self.array(2, HEADS, 576),
                                    self.array(4, 64, 656, dtype="uint8"), kv_dtype="e4m3", **self.lies, **SCALE)
        self.assertIn("kpe=rows[..., 528:]", error.accepted)

    def test_axes(self):
        for q in (self.array(3, CKV), self.array(2, 3, HEADS, 1, CKV)):
            self.refused("q.shape", q, self.ckv, **self.lies, kpe=self.kpe)
        for rows in ((2, HEADS), (2, 3, HEADS - 1), (2, 1, HEADS), ()):
            self.refused("q_pe.shape", self.q, self.ckv, q_pe=self.array(*rows, KPE), kpe=self.kpe, **self.lies)
        for rows in ((4,), (4, 16, 2), (4, 16, 1, 1), ()):
            self.refused("ckv.shape", self.q, self.array(*rows, CKV), **self.apart, **self.lies)
            self.refused("kpe.shape", self.q, self.ckv, q_pe=self.q_pe, kpe=self.array(*rows, KPE), **self.lies)
        for rows in ((5, 16), (4, 8), (4, 8, 1)):
            error = self.refused("kpe.shape", self.q, self.ckv, q_pe=self.q_pe, kpe=self.array(*rows, KPE), **self.lies)
            self.assertIn("(4, 16, 64)", error.accepted)
        self.refused("q_indptr.shape", self.array(6, HEADS, CKV), self.ckv, q_pe=self.array(6, HEADS, KPE),
                     kpe=self.kpe, **self.lies, q_indptr=self.table())
        self.refused("page_table.shape", self.q, self.ckv, self.ints(0, 1), self.lens(), **self.apart)
        self.refused("page_indices.shape", self.q, self.ckv, **self.apart,
                     **{**self.compressed(), "page_indices": self.table()})
        error = self.refused("ckv.shape[0]", self.q, self.ckv, **self.apart)  # neither pages nor offsets: dense
        self.assertEqual((error.value, error.accepted), ("4", "2 (batch)"))

    def test_tensors(self):
        self.refused("q", None, self.ckv, **self.lies)
        self.refused("ckv", self.q, None, **self.lies)
        self.refused("ckv", self.q, [1], **self.lies)
        wrong = {"q_pe": self.array(2, 3, HEADS, KPE, dtype="fp16"), "kpe": self.array(4, 16, KPE, dtype="fp16"),
                 "ckv": self.array(4, 16, CKV, dtype="fp16")}
        right = {"q": self.q, "ckv": self.ckv, **self.apart, **self.lies}
        for name, tensor in wrong.items():
            error = self.refused(f"{name}.dtype", **{**right, name: tensor})
            self.assertEqual((error.value, error.accepted), ("fp16", "bf16"))
        for name in ("ckv", "kpe", "q_pe"):
            elsewhere = self.array(*right[name].shape, device=1)
            self.refused(f"{name}.device", **{**right, name: elsewhere})
            odd = self.array(*right[name].shape[:-1], 2 * right[name].shape[-1])
            view = (odd.data, right[name].shape, (*odd.strides[:-1], 2), *odd._view[3:])
            self.refused(f"{name}.strides[{len(right[name].shape) - 1}]",
                         **{**right, name: attnsmith.Array(view, odd._buffer)})
        with self.assertRaises(attnsmith.Unsupported):
            attnsmith.mla_attention(*[self.array(2, 24, 72, dtype="fp32")] * 2, head_dim_ckv=64, **SCALE)

    def test_where_latents_lie(self):
        right = {"q": self.q, "ckv": self.ckv, **self.apart, **SCALE}
        for given in ({"page_table": self.table()}, {**self.lies, "kv_indptr": self.ints(0, 5, 30)},
                      {**self.lies, **self.compressed()}, {"page_indptr": self.ints(0, 2, 3)},
                      {**self.lies, "table_rows": self.table()}):
            with self.subTest(given=sorted(given)), self.assertRaises(attnsmith.InvalidRequest) as caught:
                attnsmith.mla_attention(**right, **given)
            name = caught.exception.field.rpartition("batch.")[2].partition(".")[0]
            self.assertIn(name, {*abi.BATCH_FIELDS}, str(caught.exception))

    def test_words(self):
        right = {"q": self.q, "ckv": self.ckv, **self.apart, **self.lies}
        for wrong in (0, -1, 64.0, "64", True, 2**63, object()):
            for _ in range(2):
                self.refused("head_dim_ckv", **right, head_dim_ckv=wrong)
        for name in ("causal", "return_lse", "return_status"):
            self.refused(name, **right, **{name: 1})
        for name in ("max_q_len", "max_kv_len"):
            self.refused(name, **right, **{name: -1})
        self.refused("consistency", **right, consistency="exact")
        self.refused("o_dtype", **right, o_dtype="fp16")
        self.refused("out.dtype", **right, out=self.array(2, 3, HEADS, CKV), o_dtype="fp32")
        self.refused("o.shape[3]", **right, out=self.array(2, 3, HEADS, CKV + KPE))
        self.refused("o", **{**right, "out": self.q})
        for name in ("window", "softcap", "sinks", "precision", "v", "page_order"):  # no words of this function
            self.refused(name, **right, **{name: None})


class Steps(LatentTest):
    """prepare, bind and launch."""

    def setUp(self):
        super().setUp()
        self.kernel = self.rt.prepare(**SMALL, kv="paged", page_size=16, batch=2, kv_len=32)
        self.lies = {"page_table": self.table(), "kv_lens": self.lens()}
        self.o = self.array(2, 1, HEADS, CKV)

    def tensors(self):
        return {"q": self.array(2, 1, HEADS, CKV), "k": self.array(4, 16, CKV), "q_pe": self.array(2, 1, HEADS, KPE),
                "kpe": self.array(4, 16, 1, KPE)}

    def test_the_request(self):
        spec = self.kernel.spec
        self.assertEqual({name: spec[name] for name in SMALL}, SMALL)
        self.assertNotIn("head_dim_qk", spec)
        self.assertTrue(self.kernel.plan()["kernels"][0]["name"].startswith("mla"))

    def test_bind_and_launch(self):
        self.state.param_bytes = 64
        given = self.tensors()
        call = self.kernel.bind(**given, o=self.o, **self.lies)
        self.assertEqual(self.launched(call.launch)[0], 1)
        order = ("q", "k", "q_pe", "kpe", "o")
        self.assertEqual(self.launched_at("q", "v", "q_pe", "k", "o"),
                         [{**given, "o": self.o}[name].data for name in order])
        other = self.tensors()
        for layer in (other, {name: array.data for name, array in other.items()}):  # the next layer's
            self.assertEqual(self.launched(call.launch, **layer)[0], 1)
            self.assertEqual(self.launched_at("q", "v", "q_pe", "k"), [other[name].data for name in order[:-1]])
        call.launch(kpe=other["kpe"])
        self.assertEqual(self.launched_at("q", "v", "q_pe", "k"),
                         [given["q"].data, given["k"].data, given["q_pe"].data, other["kpe"].data])

    def test_joined(self):
        self.state.param_bytes = 64
        q, k = self.array(2, 1, HEADS, CKV + KPE), self.array(4, 16, 1, CKV + KPE)
        call = self.kernel.bind(q, k, None, self.o, **self.lies)
        call.launch()
        self.assertEqual(self.launched_at("q", "v", "q_pe", "k"), [q.data, k.data, 0, 0])
        self.assert_refused("addresses.q_pe", call.launch, q_pe=q.data)
        self.assert_refused("addresses.kpe", call.launch, kpe=k)

    def test_refusals(self):
        given = self.tensors()
        self.assert_refused("v", self.kernel.bind, **given, v=given["k"], o=self.o, **self.lies)
        self.assert_refused("o", self.kernel.bind, **given, **self.lies)
        self.assert_refused("q_pe.shape[2]", self.kernel.bind, **{**given, "q_pe": self.array(2, 1, 1, KPE)}, o=self.o,
                            **self.lies)
        self.assert_refused("kpe.dtype", self.kernel.bind, **{**given, "kpe": self.array(4, 16, KPE, dtype="fp16")},
                            o=self.o, **self.lies)
        call = self.kernel.bind(**given, o=self.o, **self.lies)
        self.assert_refused("kpe.shape", call.launch, kpe=self.array(4, 16, KPE))
        self.assert_refused("q_pe", call.launch, q_pe=0)
        attention = self.rt.prepare(head_dim=64, q_heads=HEADS)
        q = self.array(1, 1, HEADS, 64)
        self.assert_refused("q_pe", attention.bind, q, q, q, self.array(1, 1, HEADS, 64), q_pe=q)
        self.assert_refused("v", attention.bind, q, q, o=q)


if __name__ == "__main__":
    unittest.main()
