"""The C ABI is what abi.txt says: the layout of every struct, the value of every constant, the type of every function.

abi.txt is a promise from the first release on: lines are added, but none is changed or removed within one
ATTNSMITH_ABI_VERSION. With --write it is written anew.

abi_test.py COMPILER NM LIBRARY INCLUDE... [--write]
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import header_declarations

TABLE = pathlib.Path(__file__).resolve().parent / "abi.txt"
# What may stand before the name of one of ours in a demangled C++ symbol.
OURS = re.compile(r"(typeinfo for |typeinfo name for |vtable for |VTT for |guard variable for |"
                  r"(non-)?virtual thunk to |std::optional<attnsmith::\w+> )?attnsmith::")


def laid_out():
    """What the C compiler says of every struct, field and constant of the header, as lines of the table."""
    prints = []
    for name in header_declarations.constants():
        prints.append(f'printf("constant {name} %lld\\n", (long long){name});')
    for struct, fields in header_declarations.structs().items():
        prints.append(f'printf("struct {struct} %zu\\n", sizeof({struct}));')
        for field in fields:
            prints.append(f'printf("field {struct}.{field} %zu %zu\\n", offsetof({struct}, {field}), '
                          f'sizeof((({struct}*)0)->{field}));')
    source = "#include <stdio.h>\n#include <attnsmith/attnsmith.h>\nint main(void) {\n" + "\n".join(prints) + "\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "layout"
        subprocess.run([COMPILER, "-std=c11", *(f"-I{include}" for include in INCLUDES), "-x", "c", "-", "-o", program],
                       input=source, text=True, check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def table():
    """The lines of abi.txt for the header as it is."""
    lines = laid_out()
    lines += (f"callback {name} {signature}" for name, signature in sorted(header_declarations.callbacks().items()))
    lines += (f"function {name} {signature}" for name, signature in sorted(header_declarations.functions().items()))
    return lines


def exported(*flags):
    command = [NM, "--dynamic", "--defined-only", "--format=posix", *flags, LIBRARY]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r" [A-Za-z](?: [0-9a-f]+)*\s*$", "", line) for line in lines]


def plain(symbol):
    """A symbol without its version."""
    return symbol.split("@")[0]


class Abi(unittest.TestCase):
    def test_the_header_is_what_the_table_says(self):
        self.assertEqual(table(), TABLE.read_text(encoding="utf-8").splitlines())

    def test_all_that_the_header_declares_is_in_the_table(self):
        """The parser of the header passes nothing over."""
        text = header_declarations.text()
        self.assertEqual(len(header_declarations.functions()), text.count("ATTNSMITH_API"))
        self.assertEqual(len(header_declarations.callbacks()), text.count("(*"))
        self.assertEqual(len(header_declarations.structs()), len(re.findall(r"typedef struct \w+ \{", text)))
        names = set(re.findall(r"\bATTNSMITH_[A-Z0-9_]+\b", text))
        marks = {"ATTNSMITH_API", "ATTNSMITH_NODISCARD", "ATTNSMITH_NOEXCEPT", "ATTNSMITH_NO_DEPRECATED",
                 "ATTNSMITH_ATTNSMITH_H"}
        self.assertEqual(names - marks, set(header_declarations.constants()))

    def test_every_function_cannot_throw_and_its_result_must_be_looked_at(self):
        text = " ".join(header_declarations.text().split())
        for declaration in re.findall(r"[^;{}]*ATTNSMITH_API[^;]*;", text):
            self.assertTrue(declaration.endswith("ATTNSMITH_NOEXCEPT;"), declaration)
            if "ATTNSMITH_API void attnsmith_" not in declaration:
                self.assertIn("ATTNSMITH_NODISCARD ATTNSMITH_API", declaration)

    def test_the_library_exports_the_functions_of_c(self):
        names = [plain(name) for name in exported() if not name.startswith(("_Z", "ATTNSMITH_"))]
        self.assertEqual(sorted(names), sorted(header_declarations.functions()))

    def test_all_else_that_it_exports_is_of_the_public_namespace(self):
        names = [plain(name) for name in exported("--demangle")]
        others = [name for name in names if not name.startswith(("attnsmith_", "ATTNSMITH_")) and not OURS.match(name)]
        self.assertEqual(others, [])
        inner = [name for name in names if re.match(OURS.pattern + r"[a-z_]\w*::", name) or "::Impl::" in name]
        self.assertEqual(inner, [])

    def test_every_exported_symbol_has_the_version_of_the_soname(self):
        symbols = exported()
        versions = {symbol.split("@@")[1] for symbol in symbols if "@@" in symbol}
        self.assertEqual(len(versions), 1)
        version = versions.pop()
        self.assertEqual([symbol for symbol in symbols if not symbol.endswith("@@" + version) and symbol != version], [])
        self.assertRegex(version, r"^ATTNSMITH_(0\.\d+|[1-9]\d*)$")
        self.assertIn(".so." + version.removeprefix("ATTNSMITH_"), LIBRARY)

    def test_no_function_has_a_static_object_that_is_made_at_its_first_call(self):
        # A child forked while another thread of its parent made it would wait for that thread for ever.
        symbols = subprocess.run([NM, "--demangle", LIBRARY], capture_output=True, text=True, check=True).stdout
        guards = re.findall(r"guard variable for (attnsmith::.*)", symbols)
        self.assertEqual(guards, [])


if __name__ == "__main__":
    write = "--write" in sys.argv
    COMPILER, NM, LIBRARY, *INCLUDES = [argument for argument in sys.argv[1:] if argument != "--write"]
    if write:
        TABLE.write_text("\n".join(table()) + "\n", encoding="utf-8")
    else:
        unittest.main(argv=sys.argv[:1])
