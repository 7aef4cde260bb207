"""examples/python shows every public function and class of the package, every method of the classes, and every operation of the
cache. The names are read from the package."""

import ast
import inspect
import typing
import unittest

from support import PACKAGE, REPOSITORY, attnsmith

EXAMPLES = sorted((REPOSITORY / "examples/python").glob("*.py"))
# Modules that users import by themselves.
MODULES = ("jax", "torch", "transformers", "tvm_ffi", "compat/flash_attn/__init__", "compat/flashinfer/__init__")


class Names(ast.NodeVisitor):
    """What a program names of attnsmith: "attnsmith.jax.attention", and of objects of its classes "attnsmith.Kernel.bind"."""

    def __init__(self, file):
        self.found, self.operations = set(), set()
        self._full = {}  # what the program's names stand for
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._full[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._full[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.walk(tree):  # kernel: attnsmith.Kernel = ..., and runtime = attnsmith.Runtime(...)
            if isinstance(node, ast.AnnAssign):
                self._full[getattr(node.target, "id", "")] = self.full(node.annotation)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
                made = self.full(node.value.func)
                if made and made.rpartition(".")[2][:1].isupper():
                    self._full[node.targets[0].id] = made
        self.visit(tree)

    def full(self, node):
        if isinstance(node, ast.Name):
            return self._full.get(node.id)
        if isinstance(node, ast.Attribute):
            before = self.full(node.value)
            return before and f"{before}.{node.attr}"
        return None

    def visit_Attribute(self, node):
        self.found.add(self.full(node))
        self.generic_visit(node)

    def visit_Call(self, node):
        if getattr(node.func, "attr", "") == "cache" and node.args and isinstance(node.args[0], ast.Constant):
            self.operations.add(node.args[0].value)
        self.generic_visit(node)


def names_of(module):
    """What __all__ of a module has, and its full name. None is imported: they need frameworks."""
    for node in ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return f"attnsmith.{module.removesuffix('/__init__').replace('/', '.')}", ast.literal_eval(node.value)
    raise AssertionError(f"{module} has no __all__")


def members(kind):
    """The public methods and properties of a class, and the fields that it lists."""
    found = [name for name, one in vars(kind).items() if inspect.isfunction(one) or isinstance(one, property)]
    return [name for name in {*found, *vars(kind).get("__slots__", ())} if not name.startswith("_")]


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        programs = [Names(file) for file in EXAMPLES]
        cls.shown = set().union(*(program.found for program in programs))
        cls.operations = set().union(*(program.operations for program in programs))

    def test_every_name_of_the_package(self):
        self.assertGreater(len(attnsmith.__all__), 30)
        self.assertEqual([name for name in attnsmith.__all__ if f"attnsmith.{name}" not in self.shown], [])

    def test_every_method(self):
        public = [f"{name}.{member}" for name in attnsmith.__all__ for kind in [getattr(attnsmith, name)]
                  if inspect.isclass(kind) and not issubclass(kind, BaseException) and not typing.is_typeddict(kind)
                  for member in members(kind)]
        self.assertGreater(len(public), 40)
        self.assertEqual([name for name in public if f"attnsmith.{name}" not in self.shown], [])

    def test_every_name_of_the_modules(self):
        for module in MODULES:
            full, names = names_of(module)
            with self.subTest(full):
                folder = PACKAGE / module.removesuffix("__init__")
                lacking = [name for name in names if f"{full}.{name}" not in self.shown
                           and not name.isupper() and not (folder / f"{name}.py").exists()]  # no constants, no modules
                self.assertEqual(lacking, [])

    def test_every_operation_of_the_cache(self):
        self.assertEqual(self.operations | {"stat"}, set(typing.get_args(attnsmith.words.CacheOperation)))

    def test_a_name_that_no_example_has_is_missed(self):
        self.assertNotIn("attnsmith.Kernel.no_such_method", self.shown)
        self.assertNotIn("attnsmith.Buffer.pick", self.shown)
        self.assertIn("attnsmith.Kernel.bind", self.shown)

    def test_each_program_says_what_it_needs(self):
        for file in EXAMPLES:
            text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            self.assertRegex(text, r"\b[Nn]eeds\b", file.name)


if __name__ == "__main__":
    unittest.main()
