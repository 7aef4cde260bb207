"""The parts of the Python package import each other as the table of import_rules.py says, and README.md shows that table."""

import ast
import pathlib
import re
import unittest

import import_cycles
import import_rules

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
TEXTS = import_cycles.texts_at(REPOSITORY / "tools/python/attnsmith")
README = REPOSITORY / "tools/python/README.md"


class Package(unittest.TestCase):
    def test_keeps_the_rules(self):
        found = import_rules.violations(TEXTS)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_every_member_is_there(self):
        members = {import_rules.member_of(import_cycles.module_of(file)) for file in TEXTS}
        self.assertEqual(set(import_rules.PARTS), members)

    def test_every_allowed_import_is_one(self):
        allowed = {(part, other) for part, others in import_rules.MAY_IMPORT.items() for other in others}
        self.assertEqual(allowed, set(import_rules.edges_between_parts(TEXTS)))

    def test_private_folders_import_nothing_by_themselves(self):
        for file in filter(import_rules.is_private_folder, TEXTS):
            tree = ast.parse(TEXTS[file])
            self.assertTrue(ast.get_docstring(tree) and len(tree.body) == 1, f"{file} is more than a docstring")


def table():
    """The rows of README.md's table: (part, its modules in their order, parts that it may import)."""
    rows = []
    for line in README.read_text(encoding="utf-8").partition("**Internal modules.**")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "`" in cells[1]:
            rows.append((cells[0], modules(cells[1]), set(cells[2].split(", ")) - {"nothing of ours"}))
    return rows


def modules(cell):
    """Those of "`one`; `_folder`: `two`, `three`": one, _folder.two and _folder.three."""
    found = []
    for group in cell.split(";"):
        folder, _, names = group.rpartition(":")
        found += [".".join(filter(None, (folder.strip(" `"), name))) for name in re.findall(r"`(\w+)`", names)]
    return found


def listed(module):
    """The module as the table has it: what is in a public folder goes by the folder's name."""
    member, name = import_rules.member_of(module), module.split(".")[2:3]
    return ".".join([member, *name]) if re.match("_[^_]", member) else member


class Readme(unittest.TestCase):
    def test_the_table_has_every_part_and_what_it_may_import(self):
        self.assertEqual({part: others for part, _, others in table()}, import_rules.MAY_IMPORT)
        for part, names, _ in table():
            self.assertEqual({import_rules.part_of(f"attnsmith.{name}") for name in names}, {part})

    def test_the_table_has_every_module(self):
        expected = {listed(import_cycles.module_of(file)) for file in TEXTS if not import_rules.is_private_folder(file)}
        names = [name for _, names, _ in table() for name in names]
        self.assertEqual(sorted(names), sorted(expected))

    def test_modules_are_after_what_they_import(self):
        names = [name for _, names, _ in table() for name in names]
        for (module, other), lines in import_cycles.import_edges(TEXTS).items():
            if listed(module) != listed(other):
                self.assertLess(names.index(listed(other)), names.index(listed(module)), f"{lines[0]} imports {other}")


# A module of each part, so that imports have something to point to.
SKELETON = {f"attnsmith/{member}/__init__.py" if member in ("compat", "vllm") else f"attnsmith/{member}.py": ""
            for member in import_rules.PARTS}


def check(extra):
    """The violations of the skeleton with `extra` files laid over it."""
    return import_rules.violations({**SKELETON, **extra})


class Rules(unittest.TestCase):
    def test_the_skeleton_is_clean(self):
        self.assertEqual(check({}), [])

    def test_parts_have_no_cycle(self):
        remaining = {part: set(others) for part, others in import_rules.MAY_IMPORT.items()}
        while remaining:
            free = {part for part, others in remaining.items() if not others & remaining.keys()}
            self.assertTrue(free, f"a cycle among {sorted(remaining)}")
            for part in free:
                del remaining[part]

    def test_each_forbidden_import_is_found(self):
        members = {part: member for member, part in import_rules.PARTS.items() if part != "package"}
        tried = 0
        for part in members:
            for other, member in members.items():
                if other == part or other in import_rules.MAY_IMPORT[part]:
                    continue
                file = next(file for file in SKELETON if import_rules.part_of(import_cycles.module_of(file)) == part)
                dots = "." * (len(pathlib.PurePosixPath(file).parts) - 1)
                with self.subTest(part=part, other=other):
                    self.assertEqual(check({file: f"def late():\n    from {dots} import {member}\n"}),
                                     [f"{file}:2: {part} imports {other} (attnsmith.{member})"])
                tried += 1
        self.assertGreater(tried, 40)

    def test_imports_within_a_part_are_free(self):
        self.assertEqual(check({"attnsmith/words.py": "from . import errors\n"}), [])

    def test_a_folder_belongs_to_its_part_as_a_whole(self):
        self.assertEqual(check({"attnsmith/vllm/inner.py": "from ..torch import activate\n"}),
                         ["attnsmith/vllm/inner.py:1: vLLM imports adapters (attnsmith.torch)"])

    def test_the_package_itself_is_a_part(self):
        self.assertEqual(check({"attnsmith/errors.py": "from . import plan\n"}),
                         ["attnsmith/errors.py:1: base imports package (attnsmith)"])

    def test_a_new_module_needs_a_part(self):
        found = check({"attnsmith/_more.py": ""})
        self.assertEqual(len(found), 1, found)
        self.assertIn("attnsmith/_more.py: is in no part", found[0])


if __name__ == "__main__":
    unittest.main()
