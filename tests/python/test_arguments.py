"""Calls whose arguments do not fit the function: each public one of attnsmith's own refuses them by name."""

import inspect
import unittest

from support import PythonTest, attnsmith

import attnsmith.compat.flash_attn as flash_attn

# What attnsmith.compat has besides follows its originals, which raise TypeError.
FUNCTIONS = {f"{module.__name__}.{name}": one for module, names in (
    (attnsmith, attnsmith.__all__), (attnsmith.jax, ("attention", "varlen_attention", "paged_attention", "register")),
    (attnsmith.torch, ("activate", "deactivate", "report", "reset", "scaled_dot_product_attention")),
    (flash_attn, ("install", "uninstall"))) for name in names for one in (getattr(module, name),) if inspect.isfunction(one)}
# Those of errors are made by attnsmith alone.
KINDS = [one for one in map(attnsmith.__dict__.get, attnsmith.__all__)
         if inspect.isclass(one) and not issubclass(one, (Exception, dict))]
METHODS = {f"{kind.__name__}.{name}": method for kind in KINDS for name, method in vars(kind).items()
           if inspect.isfunction(method) and (name == "__init__" or name[0] != "_")}
KEYWORDS = inspect.Parameter.VAR_KEYWORD


class Arguments(PythonTest):
    def check(self, test):
        """Of every function and method the object that it is called with, and its parameters."""
        self.assertGreater(len(FUNCTIONS), 20)
        self.assertGreater(len(METHODS), 25)
        for name, one in {**FUNCTIONS, **METHODS}.items():
            parameters = list(inspect.signature(one).parameters.values())
            is_method = parameters[:1] and parameters[0].name == "self"
            with self.subTest(name):
                test(one, [None] if is_method else [], parameters[1:] if is_method else parameters)

    def test_an_unknown_word(self):
        def check(one, self_, parameters):
            if all(parameter.kind is not KEYWORDS for parameter in parameters):
                error = self.assert_refused("no_such_word", one, *self_, no_such_word=1)
                self.assertIn("an argument of ", str(error))

        self.check(check)

    def test_too_many_without_a_name(self):
        def check(one, self_, parameters):
            needed = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
                      and parameter.default is parameter.empty]
            self.assert_refused("arguments", one, *self_, *[None] * 60, **dict.fromkeys(needed))

        self.check(check)

    def test_the_first_that_is_missing(self):
        def check(one, self_, parameters):
            needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty
                      and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
            if needed:
                self.assert_refused(needed[0], one, *self_)

        self.check(check)

    def test_words_of_a_request_are_not_what_is_wrong(self):
        """A function that takes any words, and is given one more argument without a name."""
        for one, arguments, words in ((attnsmith.plan, (1,), {}), (attnsmith.plan, (1,), {"head_dim": 64}),
                                      (attnsmith.cache, ("stat", 1), {}), (attnsmith.prewarm, ([], 1), {"dtype": "bf16"}),
                                      (attnsmith.plan_model, ("x", 90, True), {})):
            with self.subTest(one.__name__, **words):
                error = self.assert_refused("arguments", one, *arguments, **words)
                self.assertIn("words are given by name", str(error))

    def test_bits_of_a_status(self):
        """An integer, or a tensor of one, as every framework has it; and nothing else, which int() may take."""
        class Tensor:
            def __init__(self, value, dtype="int32", shape=(1,)):
                self.value, self.dtype, self.shape = value, dtype, shape

            def __int__(self):
                return int(self.value)

        self.assertTrue(attnsmith.CallStatus(Tensor(1)).q_len_clamped)
        self.assertTrue(attnsmith.CallStatus(Tensor(1, "torch.int32", ())).q_len_clamped)
        self.assertFalse(attnsmith.CallStatus(0))
        for bits in ("x", "1", None, 1.5, 1.0, b"1", [1], (1,), {}, object(), True, Tensor(1.5, "float32"),
                     Tensor(1, "int32", (2,)), Tensor("x")):
            with self.subTest(bits=bits):
                self.assertIn("return_status=True", str(self.assert_refused("bits", attnsmith.CallStatus, bits)))
        for bits in (-1, 1 << 32, 10**400, Tensor(-1), Tensor(1 << 32)):
            with self.subTest(bits=getattr(bits, "value", bits)):
                self.assert_refused("bits", attnsmith.CallStatus, bits)

    def test_a_near_miss(self):
        error = self.assert_refused("fa4", flash_attn.install, fa4=True)
        self.assertIn("fa3 (did you mean that?)", str(error))


if __name__ == "__main__":
    unittest.main()
