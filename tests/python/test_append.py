"""What append() makes of its tensors and words, by the library and a driver without a GPU."""

import ctypes
import types
import unittest

from launch_case import LaunchTest
from support import attnsmith


class Append(LaunchTest):
    def setUp(self):
        super().setUp()
        attnsmith.set_default_runtime(self.rt)
        attnsmith._calls.dispatch._current = None  # what earlier tests found is not looked at

    def heads(self, dtype="fp16", **words):
        """Four tokens into pages of 16."""
        rows = {name: self.array(4, 2, 64, dtype="fp16") for name in ("k", "v")}
        caches = {name: self.array(3, 16, 2, 64, dtype=dtype) for name in ("k_cache", "v_cache")}
        return {**rows, **caches, "slot_mapping": self.array(4, dtype="int64"), "page_order": "NHD", **words}

    def latents(self, **words):
        return {"k": self.array(4, 576), "k_cache": self.array(3, 64, 576), "head_dim_ckv": 512, "page_order": "NHD",
                "slot_mapping": self.array(4, dtype="int64"), **words}

    def spec(self, words):
        attnsmith._calls.dispatch._current = None
        self.assertEqual(self.launched(attnsmith.append, **words)[0], 1)
        (entry,) = attnsmith._calls.dispatch.dispatch_now().prepared.values()
        return entry.kernel.spec

    def queries(self, dtype="fp16"):
        return self.array(4, 8, 64, dtype=dtype)

    def test_scales_by_their_axes(self):
        bytes_of = {"dtype": "uint8", "kv_dtype": "e4m3"}
        for scale, shape in (("tensor", (1,)), ("head", (2,)), ("token_head", (3, 16, 2)), ("block128", (3, 16, 2, 1))):
            with self.subTest(scale=scale):
                scales = {name: self.array(*shape, dtype="fp32") for name in ("k_scale", "v_scale")}
                self.assertEqual(self.spec(self.heads(**bytes_of, **scales))["kv_scale"], scale)
        scales = {name: self.array(1, dtype="fp32") for name in ("k_scale", "v_scale")}
        self.assert_refused("k_scale", attnsmith.append, **self.heads(**scales))

    def test_a_position_of_16_bits_beside_latents_of_8(self):
        words = {"k": self.array(4, 512), "kpe": self.array(4, 64), "kpe_cache": self.array(3, 64, 64),
                 "k_cache": self.array(3, 64, 512, dtype="uint8"), "kv_dtype": "e4m3"}
        scale = self.array(3, 64, 4, dtype="fp32")
        self.assertEqual(self.spec(self.latents(**words, k_scale=scale))["kv_scale"], "block128")
        for scale in (None, self.array(3, 64, dtype="fp32"), self.array(1, dtype="fp32")):
            with self.subTest(scale=scale):
                self.assert_refused("k_scale", attnsmith.append, **self.latents(**words, k_scale=scale))

    def test_what_queries_are_written_as(self):
        for words, q_dtype in (({"q_out": self.queries()}, "fp16"), ({"q_out": self.queries(), "q_dtype": "fp16"}, "fp16"),
                               ({"q_out": self.queries("uint8"), "q_dtype": "e5m2"}, "e5m2"),
                               ({"q_out": self.queries("uint8"), "q_dtype": "fp8"}, "e4m3")):
            with self.subTest(**words):
                self.assertEqual(self.spec(self.heads(q=self.queries(), **words))["q_dtype"], q_dtype)
        for field, words in (("q_out.dtype", {"q": self.queries(), "q_out": self.queries(), "q_dtype": "e4m3"}),
                             ("q_dtype", {"q": self.queries(), "q_out": self.queries(), "q_dtype": "int4"}),
                             ("q_dtype", {"q": self.queries(), "q_out": self.queries("uint8")}),
                             ("q_dtype", {"q_dtype": "e4m3"})):
            with self.subTest(field=field, **words):
                self.assert_refused(field, attnsmith.append, **self.heads(**words))

    def test_each_norm_has_its_own_weight(self):
        """The kernel's parameters have the rows and the weight of q, then those of k."""
        rows, weights = {"q": self.queries(), "q_out": self.queries()}, {f"{name}_norm_weight": self.array(64, dtype="fp16") for name in "qk"}
        words = self.heads(**rows, **weights)
        self.assertEqual(self.launched(attnsmith.append, **words)[0], 1)
        launch = self.state.last_launch
        parameters = list((ctypes.c_uint64 * (launch.parameter_bytes // 8)).from_buffer_copy(launch.parameter))
        at = [parameters.index(words[name].data) for name in ("q", "q_norm_weight", "k", "k_norm_weight", "v")]
        self.assertEqual(at, sorted(at))

    def test_a_table_at_an_odd_address(self):
        """A kernel reads the table in the class of its alignment."""
        positions = self.array(4, dtype="int64")
        for offset, alignment in ((0, 16), (8, 8), (4, 4), (2, 2)):
            with self.subTest(offset=offset):
                table = self.array(32, 64, dtype="fp16", offset=offset)
                self.assertEqual(self.spec(self.heads(rope_table=table, positions=positions))["alignment"], alignment)

    def test_alignment_is_that_of_the_least_aligned_tensor(self):
        """With a table and without: a table at a better address does not hide the others."""
        positions = {"positions": self.array(4, dtype="int64", offset=8)}  # whose own does not count
        heads = self.heads(q=self.queries(), q_out=self.queries(), **positions,
                           **{f"{name}_norm_weight": self.array(64, dtype="fp16") for name in "qk"})
        latents = self.latents(k=self.array(4, 512), k_cache=self.array(3, 64, 512), kpe=self.array(4, 64),
                               kpe_cache=self.array(3, 64, 64), **positions)
        of_heads = ("q", "k", "v", "q_out", "k_cache", "v_cache", "q_norm_weight", "k_norm_weight")
        of_latents = ("k", "k_cache", "kpe", "kpe_cache")
        for words, dtype, names in ((heads, "fp16", of_heads), (latents, "bf16", of_latents)):
            for name in names:
                odd = {name: self.array(*words[name].shape, dtype=dtype, offset=8)}
                for table_offset, alignment in ((None, 8), (0, 8), (8, 8), (4, 4)):
                    with self.subTest(tensor=name, latents=words is latents, table_offset=table_offset):
                        table = {} if table_offset is None else {
                            "rope_table": self.array(32, 64, dtype=dtype, offset=table_offset)}
                        given = {**words, **odd, **table}
                        if not table:
                            del given["positions"]
                        self.assertEqual(self.spec(given)["alignment"], alignment)

    def test_new_queries(self):
        """Also where no tensor says which GPU it is on."""
        made = attnsmith.append(**self.heads(q=self.queries()))
        self.assertEqual(made.shape, (4, 8, 64))
        bare = {name: value if isinstance(value, str) else types.SimpleNamespace(
            __cuda_array_interface__=dict(value.__cuda_array_interface__), array=value)
            for name, value in self.heads(q=self.queries()).items()}
        self.assertEqual(attnsmith.append(**bare).shape, (4, 8, 64))

    def test_words_that_say_nothing(self):
        for field, words in (("head_dim_ckv", self.heads(head_dim_ckv=64)),
                             ("page_order", self.heads(page_order="nhd")), ("page_order", self.latents(page_order="XYZ")),
                             ("kv_dtype", self.heads(kv_dtype=["e4m3"])),
                             ("head_dim_ckv", self.latents(head_dim_ckv="512")),
                             ("slot_mapping", self.heads(kv_lens=self.array(4, dtype="int32"))),
                             ("rope", self.heads(rope="none", rope_table=self.array(9, 64, dtype="fp32")))):
            with self.subTest(field=field):
                self.assert_refused(field, attnsmith.append, **words)
        for field, word in (("kv_dtype", "e4m3"), ("v_norm", True), ("check_slots", True), ("page_order", "HND"),
                            ("head_dim_ckv", 512)):
            with self.subTest(without_k=field):
                self.assert_refused(field, attnsmith.append, q=self.queries(), q_out=self.queries(), **{field: word})

    def test_a_dtype_of_torch(self):
        """kv_dtype=torch.float8_e4m3fn, of which its name and size are looked at."""
        class dtype:
            itemsize = 1

            def __str__(self):
                return "torch.float8_e4m3fn"

        words = self.heads(dtype="uint8", **{name: self.array(1, dtype="fp32") for name in ("k_scale", "v_scale")})
        self.assertEqual(self.spec({**words, "kv_dtype": dtype()})["kv_dtype"], "e4m3")

    def test_slots_and_positions_of_each_token_of_a_batch(self):
        rows = {name: self.array(2, 3, 2, 64, dtype="fp16") for name in ("k", "v")}
        table = self.array(9, 64, dtype="fp32")
        words = self.heads(**rows, rope_table=table)
        for shape in ((6,), (2, 3)):
            given = {name: self.array(*shape, dtype="int64") for name in ("slot_mapping", "positions")}
            with self.subTest(shape=shape):
                self.assertEqual(self.launched(attnsmith.append, **{**words, **given})[0], 1)
        apart = types.SimpleNamespace(__cuda_array_interface__={**self.array(2, 3, dtype="int64").__cuda_array_interface__,
                                                                "strides": (32, 8)})
        given = {name: self.array(6, dtype="int64") for name in ("slot_mapping", "positions")}
        for name in given:
            self.assert_refused(f"{name}.strides", attnsmith.append, **{**words, **given, name: apart})
            for shape in ((3, 6), (3, 2), (1, 6)):  # as M-RoPE has them, and of another batch
                wrong = {**words, **given, name: self.array(*shape, dtype="int64")}
                with self.assertRaises(attnsmith.InvalidRequest) as caught:
                    attnsmith.append(**wrong)
                self.assertTrue(caught.exception.field.startswith(name), caught.exception)

    def test_slots_and_positions_that_are_part_of_a_wider_tensor(self):
        """Those of the tokens lie one after the other; the stride of an axis of one does not count."""
        for (rows, columns), strides, fits in (((4, 1), (1, 1), True), ((4, 1), (1, 8), True), ((4, 1), (8, 1), False),
                                               ((1, 4), (8, 1), True), ((1, 4), (8, 2), False), ((2, 3), (3, 1), True),
                                               ((2, 3), (6, 2), False), ((1, 1), (8, 8), True)):
            new = {name: self.array(rows, columns, 2, 64, dtype="fp16") for name in ("k", "v")}
            words = self.heads(**new, rope_table=self.array(9, 64, dtype="fp32"))
            wide = self.array(64, dtype="int64")
            part = attnsmith.Array((wide.data, (rows, columns), strides, *wide._view[3:]), wide._buffer)
            plain = {name: self.array(rows * columns, dtype="int64") for name in ("slot_mapping", "positions")}
            for name in plain:
                with self.subTest(tensor=name, shape=(rows, columns), strides=strides):
                    given = {**words, **plain, name: part}
                    if fits:
                        self.assertEqual(self.launched(attnsmith.append, **given)[0], 1)
                    else:
                        self.assert_refused(f"{name}.strides[0]", attnsmith.append, **given)

    def test_a_rotation_without_a_table(self):
        for word in ({"rope": "half"}, {"rope": "interleaved"}, {"rope_factor": 2.0}):
            with self.subTest(**word):
                error = self.assert_refused("rope_table", attnsmith.append, **self.heads(**word))
                self.assertIn("rope_table is missing", str(error))
                self.assertIn(f"with {next(iter(word))}=", str(error))

    def test_index_tensors_of_two_dtypes(self):
        words = {name: value for name, value in self.heads().items() if name != "slot_mapping"}
        words.update(k=self.array(2, 2, 2, 64, dtype="fp16"), v=self.array(2, 2, 2, 64, dtype="fp16"),
                     kv_lens=self.array(2, dtype="int64"), page_table=self.array(2, 3, dtype="int32"))
        error = self.assert_refused("page_table.dtype", attnsmith.append, **words)
        self.assertIn("int64, as kv_lens is", str(error))

    def test_tensors_without_axes(self):
        for name, words in (("v", self.heads(v=self.array())), ("k", self.latents(k=self.array())),
                            ("kpe", self.latents(kpe=self.array())),
                            ("rope_table", self.heads(rope_table=self.array(dtype="fp32"))),
                            ("q", self.latents(q=self.array(4), q_out=self.queries()))):
            with self.subTest(tensor=name):
                self.assert_refused(f"{name}.shape", attnsmith.append, **words)


if __name__ == "__main__":
    unittest.main()
