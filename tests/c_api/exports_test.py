"""The functions of the C ABI are those of exports.txt: in the shared library, in the header, in layout_test.c.

exports_test.py NM LIBRARY
"""

import pathlib
import re
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE.parents[1] / "runtime/include/attnsmith/attnsmith.h"
LISTED = (HERE / "exports.txt").read_text(encoding="utf-8").split()
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# What may stand before the name of one of ours in a demangled C++ symbol.
OURS = re.compile(r"(typeinfo for |typeinfo name for |vtable for |VTT for |guard variable for |"
                  r"(non-)?virtual thunk to )?attnsmith::")


def exported(*flags):
    command = [NM, "--dynamic", "--defined-only", "--format=posix", *flags, LIBRARY]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r" [A-Za-z](?: [0-9a-f]+)*\s*$", "", line) for line in lines]


class Exports(unittest.TestCase):
    def test_the_list_is_sorted_and_each_is_there_once(self):
        self.assertEqual(LISTED, sorted(set(LISTED)))

    def test_the_library_exports_these_functions_of_c(self):
        self.assertEqual(sorted(name for name in exported() if not name.startswith("_Z")), LISTED)

    def test_all_else_is_of_the_public_namespace(self):
        others = [name for name in exported("--demangle") if name not in LISTED and not OURS.match(name)]
        self.assertEqual(others, [])
        inner = [name for name in exported("--demangle") if re.search(r"attnsmith::c_api::", name)]
        self.assertEqual(inner, [])

    def test_no_function_has_a_static_object_that_is_made_at_its_first_call(self):
        # A child forked while another thread of its parent made it would wait for that thread for ever.
        symbols = subprocess.run([NM, "--demangle", LIBRARY], capture_output=True, text=True, check=True).stdout
        guards = re.findall(r"guard variable for (attnsmith::.*)", symbols)
        self.assertEqual(guards, [])

    def test_the_header_declares_them(self):
        text = COMMENT.sub("", HEADER.read_text(encoding="utf-8"))
        declared = re.findall(r"ATTNSMITH_API\b[^;(]*?\b(attnsmith_\w+)\(", text)
        self.assertEqual(sorted(declared), LISTED)

    def test_the_layout_test_links_them(self):
        linked = re.findall(r"\(function\)(attnsmith_\w+)", (HERE / "layout_test.c").read_text(encoding="utf-8"))
        self.assertEqual(sorted(linked), LISTED)


if __name__ == "__main__":
    NM, LIBRARY = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
