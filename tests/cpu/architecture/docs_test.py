"""The pages for people name files that exist, and their links lead somewhere."""

import json
import pathlib
import re
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs", "examples", "cache", "kernel_templates", "tests", "tools"]
# A path in backticks: folders and perhaps a file's name. NAME stands for what the reader chooses.
PATH = re.compile(r"`((?:cache|docs|examples|kernel_templates|runtime|tests|tools)(?:/[A-Za-z0-9_.+-]+)+/?)`")
CODE = {".cpp", ".hpp", ".h", ".cuh", ".py", ".json"}
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def pages(names=PAGES):
    for name in names:
        path = REPOSITORY / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.md"))


# CONTRIBUTING.md, "How we write". In backticks a word may stand for itself, such as a user's name.
VAGUE = re.compile(r"\b(nobody|somebody|whoever|so many|of which|what one|who asks|beside|behind)\b", re.IGNORECASE)
PLAIN = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs"]


class Pages(unittest.TestCase):
    def test_words(self):
        seen = 0
        for page in pages(PLAIN):
            seen += 1
            text = re.sub(r"`[^`\n]*`", "``", page.read_text(encoding="utf-8"))
            with self.subTest(page=page.name):
                self.assertEqual(sorted({found.lower() for found in VAGUE.findall(re.sub(r"\s+", " ", text))}), [])
        self.assertGreater(seen, 15)

    def test_paths_exist(self):
        seen = 0
        for page in pages():
            for path in PATH.findall(page.read_text(encoding="utf-8")):
                if "NAME" in path:
                    continue
                seen += 1
                with self.subTest(page=page.name, path=path):
                    self.assertTrue((REPOSITORY / path).exists())
        self.assertGreater(seen, 30)

    def test_links_lead_somewhere(self):
        seen = 0
        for page in pages():
            for link in LINK.findall(page.read_text(encoding="utf-8")):
                if "://" in link or link.startswith("mailto:"):
                    continue
                seen += 1
                with self.subTest(page=page.name, link=link):
                    self.assertTrue((page.parent / link).exists())
        self.assertGreater(seen, 10)

    def test_the_families_that_are_named_are_registered(self):
        registry = (REPOSITORY / "runtime/families/registry/registry.cpp").read_text(encoding="utf-8")
        folders = {path.parent.name for path in (REPOSITORY / "runtime/families").glob("*/family.hpp")}
        self.assertEqual(folders, set(re.findall(r"&(\w+)::family\(\)", registry)))


def files_with(words, outside):
    """The product's source files whose code, and not only comments, or JSON has one of the words."""
    found = set()
    for folder in ("runtime", "kernel_templates", "tools/python"):
        for path in (REPOSITORY / folder).rglob("*"):
            name = path.relative_to(REPOSITORY).as_posix()
            if path.suffix not in CODE and path.name != "CMakeLists.txt" or name.startswith(tuple(outside)):
                continue
            code = re.sub(r"^\s*(?://|#(?!include)).*$|//.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if any(word in code for word in words):
                found.add(name)
    return found


class AddAKernel(unittest.TestCase):
    PAGE = (REPOSITORY / "docs/add-a-kernel.md").read_text(encoding="utf-8")

    def test_the_lists_are_exact(self):
        held = re.findall(r"^Checked by searching for (.*?):\n\n((?:- .*\n(?:  .*\n)*)+)", self.PAGE, re.MULTILINE)
        self.assertEqual(len(held), 4)
        for condition, listed in held:
            words, _, outside = condition.partition("outside of")
            expected = files_with(re.findall("`(.*?)`", words), [name + "/" for name in re.findall("`(.*?)`", outside)])
            self.assertEqual(sorted(PATH.findall(listed)), sorted(expected), condition)


class Ops(unittest.TestCase):
    def test_nobody_asks_which_op_it_is(self):
        """But the ops themselves, and what reads a model, which makes requests of ops."""
        found = {path.relative_to(REPOSITORY / "runtime").parts[0] for path in (REPOSITORY / "runtime").rglob("*.?pp")
                 if re.search(r"\bOp::\w", re.sub(r"//.*", "", path.read_text(encoding="utf-8")))}
        self.assertEqual(found, {"ops", "models", "include"})


class Numerics(unittest.TestCase):
    PAGE = (REPOSITORY / "docs/numerics.md").read_text(encoding="utf-8")

    def test_the_groups_that_hold_its_promises_have_run(self):
        ledger = json.loads((REPOSITORY / "tests/gpu/LEDGER.json").read_text(encoding="utf-8"))
        named = set(re.findall(r"`gpu:([a-z_-]+)`", self.PAGE))
        self.assertGreater(len(named), 25)
        self.assertEqual(named - ledger["groups"].keys(), set())

    def test_its_tolerances_are_those_that_are_applied(self):
        code = (REPOSITORY / "tools/check/tolerance.cpp").read_text(encoding="utf-8")
        fp16, bf16 = re.search(r"Tolerance\{(.*?)\} : Tolerance\{(.*?)\}", code).groups()
        lse = re.search(r"Tolerance lse_tolerance.*?: Tolerance\{(.*?)\}", code, re.DOTALL)[1]
        rows = [re.split(r" *\| *", line.strip("| "))[-3:] for line in self.PAGE.splitlines()
                if line.startswith(("| each element", "| the same, relative"))]
        self.assertEqual([", ".join(column) for column in zip(*rows)], [fp16, bf16, lse])


if __name__ == "__main__":
    unittest.main()
