"""What help() says: of every public function and method, each parameter by its name; of functions what they raise."""

import ast
import inspect
import re
import unittest

from support import PACKAGE, PythonTest, attnsmith

PUBLIC = {name: getattr(attnsmith, name) for name in attnsmith.__all__}
FUNCTIONS = {name: one for name, one in PUBLIC.items() if inspect.isfunction(one)}
FUNCTIONS["torch.scaled_dot_product_attention"] = attnsmith.torch.scaled_dot_product_attention
FUNCTIONS.update({f"jax.{name}": getattr(attnsmith.jax, name)
                  for name in ("attention", "varlen_attention", "paged_attention")})
CLASSES = [one for one in PUBLIC.values() if inspect.isclass(one)]
NO_INPUTS = {"stream", "options", "out", "attn_mask"}  # taken as they are, of another input's shape, or refused
CANNOT_FAIL = {"default_runtime", "set_default_runtime"}


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def tensors(function):
    """What may be an object of any framework."""
    return [name for name, parameter in inspect.signature(function).parameters.items()
            if parameter.annotation == "Any" and name not in NO_INPUTS]


def unnamed(function, text):
    """The parameters that the text does not name."""
    return [name for name in parameters(function) if not re.search(rf"\b{name}\b", text)]


# CONTRIBUTING.md, "How we write", and what refers to another line, which a tooltip does not show.
VAGUE = re.compile(r"\b(nobody|somebody|whoever|so many|of which|what one|who asks|beside|behind|likewise|as there|"
                   r"the same of)\b", re.IGNORECASE)


def public_docstrings():
    """(file, line, text) of each module, class and function that has no underscore before its name."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        waiting = [ast.parse(file.read_text(encoding="utf-8"))]
        while waiting:
            node = waiting.pop()
            waiting += [one for one in node.body
                        if isinstance(one, (ast.ClassDef, ast.FunctionDef)) and not one.name.startswith("_")]
            if ast.get_docstring(node):
                yield file.relative_to(PACKAGE).as_posix(), node.body[0].lineno, ast.get_docstring(node)


class Docs(PythonTest):
    def test_each_can_be_read_alone(self):
        """Without the words that the project avoids, and as sentences."""
        seen = 0
        for file, line, text in public_docstrings():
            seen += 1
            with self.subTest(file=file, line=line):
                self.assertEqual(VAGUE.findall(" ".join(text.split())), [])
                self.assertRegex(text, r"[.:)`\"]$")
        self.assertGreater(seen, 150)

    def test_functions(self):
        self.assertGreater(len(FUNCTIONS), 10)
        for name, function in FUNCTIONS.items():
            with self.subTest(function=name):
                text = inspect.getdoc(function) or ""
                self.assertEqual(unnamed(function, text), [])
                if name not in CANNOT_FAIL:
                    self.assertRegex(text, r"\bRaises [A-Z]\w+")

    def test_scales_of_keys_and_values_are_given_both_or_neither(self):
        """None is 1 for neither of them alone."""
        both = {name: function for name, function in FUNCTIONS.items() if {"k_scale", "v_scale"} <= set(parameters(function))}
        self.assertGreater(len(both), 3)
        for name, function in both.items():
            text = inspect.getdoc(function)
            self.assertNotRegex(text, r"None is 1[.;,]", name)
        self.assertRegex(inspect.getdoc(inspect.getmodule(attnsmith.attention)), "both, or neither")

    def test_tensors_have_shapes(self):
        self.assertLessEqual({"q", "kv_lens"}, set(tensors(attnsmith.attention)))
        for name, function in FUNCTIONS.items():
            text = " ".join((inspect.getdoc(function) or "").split())
            for parameter in tensors(function):
                with self.subTest(function=name, tensor=parameter):
                    # The name, then its shape before the sentence ends.
                    self.assertRegex(text, rf"\b{parameter}\b[^.]*?\[[\w ,.+]+\]")

    def test_methods(self):
        for kind in CLASSES:
            self.assertTrue(inspect.getdoc(kind), kind)
            for name, method in vars(kind).items():
                if name.startswith("_") or not inspect.isfunction(method):
                    continue
                with self.subTest(method=f"{kind.__name__}.{name}"):
                    text = inspect.getdoc(method) or ""
                    self.assertTrue(text)
                    self.assertEqual(unnamed(method, text), [])

    def test_options_of_a_runtime(self):
        self.assertEqual(unnamed(attnsmith.Runtime.__init__, inspect.getdoc(attnsmith.Runtime)), [])


if __name__ == "__main__":
    unittest.main()
