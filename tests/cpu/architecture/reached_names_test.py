"""Files include what they use, and the checker sees what a file lacks. Arguments: the C++ compiler and its flags."""

import pathlib
import sys
import unittest

import include_edges
import reached_names

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
FILES = {
    "cache/store.hpp": "#include <string>\nnamespace attnsmith::cache {\nstruct Store {\n    std::string name;\n};\n"
                       "int open_all(int folders);\n}  // namespace attnsmith::cache\n",
    "cache/user.hpp": '#include "cache/store.hpp"\nnamespace attnsmith::cache {\nstruct User {};\n}  // namespace attnsmith::cache\n',
}


def names(text):
    return reached_names.Names({**FILES, "cache/a.cpp": text})


class Repository(unittest.TestCase):
    def setUp(self):
        self.names = reached_names.Names(include_edges.Tree.at(REPOSITORY).texts)

    def test_files_reach_what_they_use_of_libraries(self):
        found = self.names.of_libraries(COMPILE)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_files_reach_what_they_use_of_ours(self):
        found = self.names.of_ours()
        self.assertEqual(found, [], "\n" + "\n".join(found))


class Checker(unittest.TestCase):
    def test_a_library_s_header_is_missing(self):
        found = names("#include <string>\nstd::mutex one;\nstd::chrono::seconds two;\nstd::string three;\n"
                      "// std::vector\n")
        found.files = ["cache/a.cpp", "cache/b.cpp"]  # the other has the headers
        found.code["cache/b.cpp"], found.ours["cache/b.cpp"] = "", set()
        found.system["cache/b.cpp"] = {"mutex", "chrono", "vector"}
        self.assertEqual(found.of_libraries(COMPILE), ["cache/a.cpp uses std::chrono::seconds and includes no header of it",
                                                       "cache/a.cpp uses std::mutex and includes no header of it"])

    def test_a_library_s_header_is_reached(self):
        self.assertEqual(names('#include "cache/user.hpp"\nstd::string one;\n').of_libraries(COMPILE), [])

    def test_a_header_of_ours_is_missing(self):
        for use, name in (("Store one;", "Store"), ("auto one = cache::Store();", "Store"), ("int x() { return open_all(1); }", "open_all"),
                          ("int x() { return cache::open_all(1); }", "open_all")):
            with self.subTest(use):
                found = names(f"namespace attnsmith {{\n{use}\n}}\n").of_ours()
                self.assertEqual(found, [f"cache/a.cpp uses {name} and includes nothing that mentions it (cache/store.hpp does)"])
                self.assertEqual(names(f'#include "cache/user.hpp"\nnamespace attnsmith {{\n{use}\n}}\n').of_ours(), [])

    def test_names_of_the_file_s_own(self):
        for text in ("int open_all(int) { return 1; }\nint x = open_all(1);\n", "struct Store {};\nStore one;\n", "int x = one.open_all(1);\n",
                     "int x(auto open_all) { return open_all(1); }\n", "int x = other::open_all(1);\n", 'auto x = "Store";  // Store\n'):
            with self.subTest(text):
                self.assertEqual(names(text).of_ours(), [])


if __name__ == "__main__":
    COMPILE = [*sys.argv[1:], "-std=c++20", "-w"]
    unittest.main(argv=sys.argv[:1])
