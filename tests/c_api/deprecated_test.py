"""Each old name of deprecated.h works, warns, and says the name that took its place.

deprecated_test.py COMPILER LIBRARY INCLUDE...
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import header_declarations

HEADER = header_declarations.HEADER.with_name("deprecated.h")
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
CONSTANTS = dict(re.findall(r"ATTNSMITH_OLD_NAME\((ATTNSMITH_\w+),\s*(ATTNSMITH_\w+)\)", TEXT))
TYPES = dict(re.findall(r"typedef (\w+) (\w+)\s+ATTNSMITH_DEPRECATED", TEXT))
# Name -> the number of parameters.
FUNCTIONS = {name: parameters.count(",") + 1 for name, parameters in
             re.findall(r"static inline attnsmith_code (\w+)\(([^)]*)\)", TEXT)}


def program():
    lines = [f"wrong |= {old} != {new};" for old, new in CONSTANTS.items()]
    lines += (f"{{ {old} callback = ({new})0; wrong |= callback != 0; }}" for new, old in TYPES.items())
    for name, count in FUNCTIONS.items():  # all want something that is not there
        lines.append(f"wrong |= {name}({', '.join(['0'] * (count - 1))}, &error) != ATTNSMITH_CODE_INVALID_REQUEST;")
        lines.append("attnsmith_error_free(error);")
    return "\n".join(["#include <attnsmith/attnsmith.h>", "int main(void) {", "int wrong = 0;", "attnsmith_error* error = 0;",
                      *lines, "return wrong;", "}", ""])


class Deprecated(unittest.TestCase):
    def compile(self, *flags):
        return subprocess.run([COMPILER, "-std=c11", "-Wall", "-Wextra", "-pedantic", *(f"-I{one}" for one in INCLUDES),
                               "-x", "c", "-", *flags], input=program(), capture_output=True, text=True, check=False)

    def test_there_are_constants_types_and_functions(self):
        self.assertTrue(CONSTANTS and TYPES and FUNCTIONS)
        self.assertEqual(TEXT.count("ATTNSMITH_DEPRECATED("), len(TYPES) + len(FUNCTIONS) + 1)

    def test_each_warns_and_says_a_name_that_there_is(self):
        done = self.compile("-fsyntax-only")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = dict(re.findall(r"warning: ['‘](\w+)['’] is deprecated: use (\w+)", done.stderr))
        self.assertEqual(set(said), {*CONSTANTS, *TYPES.values(), *FUNCTIONS})
        now = {*header_declarations.constants(), *header_declarations.functions(), *header_declarations.callbacks()}
        self.assertEqual(set(said.values()) - now, set())
        self.assertEqual({old: said[old] for old in CONSTANTS}, CONSTANTS)

    def test_a_program_may_do_without_them(self):
        done = self.compile("-fsyntax-only", "-DATTNSMITH_NO_DEPRECATED")
        for name in (*CONSTANTS, *TYPES.values(), *FUNCTIONS):
            self.assertRegex(done.stderr, rf"error: .*['‘]{name}['’]|implicit declaration of function ['‘]{name}['’]")

    def test_each_does_what_its_new_name_does(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "program"
            library = pathlib.Path(LIBRARY)
            done = self.compile("-w", "-o", str(file), "-x", "none", str(library), f"-Wl,-rpath,{library.parent}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(subprocess.run([file], check=False).returncode, 0)

    def test_none_is_exported_nor_used_in_another_file(self):
        self.assertEqual(set(FUNCTIONS) & set(header_declarations.functions()), set())
        repository = HEADER.parents[3]
        names = re.compile(r"\b(" + "|".join((*CONSTANTS, *TYPES.values(), *FUNCTIONS)) + r")\b")
        sources = [file for folder in ("runtime", "tools", "examples", "tests", "docs")
                   for pattern in ("*.c", "*.h", "*.cpp", "*.hpp", "*.py", "*.md") for file in (repository / folder).rglob(pattern)]
        using = [f"{file}: {found[0]}" for file in sources if file != HEADER and file.name != "api-review.md"
                 for found in [names.search(file.read_text(encoding="utf-8"))] if found]
        self.assertEqual(using, [])


if __name__ == "__main__":
    COMPILER, LIBRARY, *INCLUDES = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
