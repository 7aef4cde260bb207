"""Files that are compiled as one unit mean in it what they mean alone (tools/cmake/CompileTime.cmake).

Projects of a few files are configured and built with units: `cmake` is argument 1 and the C++ compiler argument 2.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(units LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_UNITY_BUILD ON)
include({repository}/tools/cmake/CompileTime.cmake)
add_executable(units main.cpp {files})
attnsmith_compile_in_units(units)
"""


def file_of(local, body):
    """A source file with something local, whose function of the file's name returns `body`."""
    return f"namespace x {{\nnamespace {{\n\n{local}\n\n}}  // namespace\n\nlong NAME() {{ return {body}; }}\n\n}}  // namespace x\n"


class Units(unittest.TestCase):
    def build(self, *texts):
        """What the functions of the files return in one program, and the files of each unit."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            names = [f"file_{at}" for at in range(len(texts))]
            for name, text in zip(names, texts):
                (folder / f"{name}.cpp").write_text(text.replace("NAME", name), encoding="utf-8")
            declared = "".join(f"long {name}();\n" for name in names)
            printed = "".join(f'std::printf("%ld ", x::{name}());\n' for name in names)
            (folder / "main.cpp").write_text(f"#include <cstdio>\nnamespace x {{\n{declared}}}  // namespace x\n"
                                             f"int main() {{\n{printed}}}\n", encoding="utf-8")
            files = " ".join(f"{name}.cpp" for name in names)
            (folder / "CMakeLists.txt").write_text(PROJECT.format(repository=REPOSITORY, files=files), encoding="utf-8")
            for command in ([CMAKE, "-S", folder, "-B", folder / "build", f"-DCMAKE_CXX_COMPILER={CXX}"],
                            [CMAKE, "--build", folder / "build"]):
                run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            program = subprocess.run([folder / "build/units"], capture_output=True, text=True, timeout=60, check=True)
            units = [re.findall(r"/(file_\d+)\.cpp", unit.read_text(encoding="utf-8"))
                     for unit in folder.glob("build/CMakeFiles/units.dir/Unity/*.cxx")]
            return [int(number) for number in program.stdout.split()], units

    def unit_of(self, name, units):
        return next((unit for unit in units if name in unit), [name])

    def test_local_names_may_repeat(self):
        kinds = {"constexpr int kNumber = {0};": "kNumber",
                 "constexpr int kNumbers[] = {{1, {0}}};": "kNumbers[1]",
                 "std::atomic<int> number{{{0}}};": "number",
                 "struct Number {{\n    int number = {0};\n}};": "Number().number",
                 "enum Kind{1} {{ kNumber = {0} }};": "kNumber",
                 "enum class Kind {{ a = {0} }};": "static_cast<long>(Kind::a)",
                 "using Number = std::array<char, {0}>;": "sizeof(Number)",
                 "#define NUMBER {0}": "NUMBER",
                 "long number() {{ return {0}; }}": "number()",
                 "[[nodiscard]] const std::array<std::array<int, 3>, 1>&\nnumber() {{\n    static std::array<std::array<int, 3>, 1> x{{{{{0}}}}};\n"
                 "    return x;\n}}": "number()[0][0]",
                 "template <typename Number>\nlong number(Number more = {0}) {{\n    return more;\n}}": "number<int>()"}
        for local, value in kinds.items():
            with self.subTest(local):
                files = ("#include <array>\n#include <atomic>\n" + file_of(local.format(number, f"OfFile{number}"), value)
                         for number in (3, 4))
                got, units = self.build(*files)
                self.assertEqual(got, [3, 4])
                self.assertNotEqual(self.unit_of("file_0", units), self.unit_of("file_1", units))

    def test_a_call_means_what_it_means_alone(self):
        """A better overload in a file of the same unit would be taken, without a word."""
        declared = "namespace x {\ninline long of(long value) { return value; }\n}  // namespace x\n"
        self.assertEqual(self.build(file_of("long of(int value) { return -value; }", "of(1)"),
                                    declared + file_of("constexpr int kTwo = 2;", "of(kTwo)"))[0], [-1, 2])

    def test_what_a_file_takes_from_elsewhere_is_its_own(self):
        declared = "namespace x {\ninline long hex() { return 5; }\n}  // namespace x\n"
        for directive, value in (("using enum std::chars_format;", "static_cast<long>(hex) * 0"), ("using namespace std;", "ios_base::hex != ios_base::oct")):
            with self.subTest(directive):
                taking = "#include <charconv>\n#include <ios>\n" + file_of(directive + "\nconstexpr int kOther = 0;", value)
                got, units = self.build(taking, declared + file_of("constexpr int kFive = 5;", "hex()"))
                self.assertEqual(got[1], 5)
                self.assertNotEqual(self.unit_of("file_0", units), self.unit_of("file_1", units))

    def test_files_that_share_no_name_are_one_unit(self):
        """Aliases that say the same may repeat."""
        alias = "using Number = long;\n"
        got, units = self.build(*(file_of(f"{alias}constexpr Number k{at} = {at};", f"k{at}") for at in range(3)))
        self.assertEqual(got, [0, 1, 2])
        self.assertEqual(self.unit_of("file_0", units), ["file_0", "file_1", "file_2"])

    def test_aliases_of_one_name_for_two_types(self):
        got, units = self.build(file_of("using Number = short;", "sizeof(Number)"), file_of("using Number = long;", "sizeof(Number)"))
        self.assertEqual(got, [2, 8])


if __name__ == "__main__":
    CMAKE, CXX = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
