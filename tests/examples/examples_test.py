"""The programs of examples/ do what they say, without a GPU: libcuda.so.1 is the stub of the driver."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
MODEL = REPOSITORY / "tests/models/llama-3.1-8b.json"


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "driver").mkdir()
        (self.folder / "driver/libcuda.so.1").symlink_to(os.environ["ATTNSMITH_FAKE_CUDA"])
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTNSMITH_ON_MISS")}
        self.environment |= {"ATTNSMITH_CACHE_DIR": str(self.folder / "cache"), "FAKE_CUDA_SM": "90",
                             "LD_LIBRARY_PATH": f"{self.folder}/driver:{os.environ.get('LD_LIBRARY_PATH', '')}"}

    def run_program(self, *command, **environment):
        return subprocess.run([str(word) for word in command], env={**self.environment, **environment}, cwd=self.folder,
                              capture_output=True, text=True, timeout=300, check=False)

    def output_of(self, *command, **environment):
        done = self.run_program(*command, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def build(self, name):
        return pathlib.Path(os.environ["C_EXAMPLES" if name.startswith("c_") else "EXAMPLES"]) / name

    def test_first_programs_launch(self):
        self.assertIn("the mean of ones is", self.output_of(self.build("first_program")))
        self.assertIn("launched and done", self.output_of(self.build("c_first_program")))

    def test_paged_decode_launches(self):
        self.assertRegex(self.output_of(self.build("paged_decode")), r"launched .* twice")
        self.assertIn("launched", self.output_of(self.build("c_paged_decode")))

    def test_programs_in_c_launch(self):
        for name, printed in (("append_and_attend", "launched with status 0"), ("latent_decode", "launched"),
                              ("merge_and_select", "(?s)merged.*selected"),
                              ("layers_in_a_graph", "launched 4 graphs of 3 layers with status 0")):
            self.assertRegex(self.output_of(self.build(f"c_{name}")), printed)

    def test_kernels_in_c_are_prepared_ahead(self):
        printed = self.output_of(self.build("c_prepared_kernels"))
        self.assertRegex(printed, r"(?s)on device 0, with scale 0\.125, .*attnsmith\.plan/1")
        self.assertRegex(printed, r"(?m)^[1-9]\d* kernels with 8 query heads on device 0$")
        self.assertRegex(printed, r"(?m)^decodes take kernel \d+$")

    def test_planning_and_prewarming_in_c_need_no_gpu(self):
        program = self.build("c_plan_and_prewarm")
        printed = self.output_of(program, MODEL, self.folder / "kernels", FAKE_CUDA_DEVICES="0")
        for what in ("with all defaults", "plan", "model", "model, paged or dense", "both dtypes", "recorded", "prewarmed",
                     "stat", "verify", "gc"):
            self.assertRegex(printed, rf"(?m)^{what}: \{{")
        total = int(re.search(r"^(\d+) of \1: ", printed, re.MULTILINE)[1])
        self.assertEqual(printed.count('"state":"compiled"') + printed.count('"state": "compiled"'), total, printed)
        self.assertEqual(self.run_program(program).returncode, 2)
        done = self.run_program(program, self.folder / "none.json", self.folder / "kernels")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("none.json: cannot be read", done.stderr)

    def test_errors_in_c_are_read_by_code_and_field(self):
        program = self.build("c_errors_and_options")
        printed = self.output_of(program, self.folder / "cache")
        self.assertIn("the field options.compile_threads is wrong", printed)
        self.assertIn("the field device is wrong", printed)
        self.assertRegex(printed, r'GPUs: \[\s*\{')
        self.assertEqual(self.run_program(program).returncode, 2)
        printed = self.output_of(program, self.folder / "cache", FAKE_CUDA_DEVICES="0")
        self.assertIn("the driver gave 100", printed)  # CUDA_ERROR_NO_DEVICE

    def test_every_function_of_c_is_in_an_example(self):
        text = "".join(file.read_text(encoding="utf-8") for file in (EXAMPLES / "c").glob("*.[ch]"))
        called = set(re.findall(r"\b(attnsmith_\w+)\(", text))
        header = (REPOSITORY / "runtime/include/attnsmith/attnsmith.h").read_text(encoding="utf-8")
        exported = re.findall(r"ATTNSMITH_API[^;(]*?\b(attnsmith_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL))
        self.assertGreater(len(exported), 60)
        self.assertEqual(sorted(set(exported) - called), [])

    def test_the_serving_loop_serves_all_sequences(self):
        printed = self.output_of(self.build("serving_loop"))
        self.assertRegex(printed, r"^served \d+ sequences in \d+ steps with [2-9]\d* graphs")
        self.assertEqual(len(printed.splitlines()), 1)  # the status had no bits

    def test_without_a_gpu_each_says_why(self):
        for name in ("first_program", "paged_decode", "serving_loop", "c_paged_decode", "c_prepared_kernels", "c_append_and_attend",
                     "c_merge_and_select", "c_latent_decode", "c_layers_in_a_graph"):
            done = self.run_program(self.build(name), FAKE_CUDA_DEVICES="0")
            self.assertEqual(done.returncode, 1, name)
            self.assertIn("NO_DEVICE", done.stderr)

    def test_the_first_program_says_which_variable_is_wrong(self):
        done = self.run_program(self.build("first_program"), ATTNSMITH_LOG="loud")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('ATTNSMITH_LOG: "loud"', done.stderr)

    def test_planning_and_prewarming_need_no_gpu(self):
        program = self.build("plan_and_prewarm")
        output = self.output_of(program, MODEL, self.folder / "kernels", FAKE_CUDA_DEVICES="0")
        self.assertIn('"schema": "attnsmith.plan/1"', output.replace('":"', '": "'))
        total, compiled = map(int, re.search(r"^(\d+) kernels, (\d+) compiled", output, re.MULTILINE).groups())
        self.assertTrue(0 < compiled == total, output)
        self.assertIn(f"{total} kernels, 0 compiled", self.output_of(program, MODEL, self.folder / "kernels"))
        self.assertEqual(self.run_program(program).returncode, 2)
        for unreadable in (self.folder, self.folder / "none.json"):
            done = self.run_program(program, unreadable, self.folder / "kernels")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{unreadable}: cannot be read", done.stderr)

    def test_prewarming_names_what_a_model_has_no_kernels_for(self):
        sparse = json.loads(pathlib.Path(MODEL).read_text(encoding="utf-8"))
        sparse["index_topk"] = 2048
        config = self.folder / "sparse.json"
        config.write_text(json.dumps(sparse), encoding="utf-8")
        done = self.run_program(self.build("plan_and_prewarm"), config, self.folder / "kernels", FAKE_CUDA_DEVICES="0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not supported: ", done.stderr)
        self.assertIn("index_topk", done.stderr)

    def test_each_op_is_launched(self):
        printed = self.output_of(self.build("all_ops"))
        for op in ("append", "attention", "merge", "mla", "top_k"):
            self.assertRegex(printed, rf"(?m)^{op}: .* CTAs? of ")

    def test_memory_of_the_program_is_given_back(self):
        nvrtc = [os.environ["ATTNSMITH_NVRTC_PATH"]] if "ATTNSMITH_NVRTC_PATH" in os.environ else []
        done = self.run_program(self.build("own_memory"), self.folder / "cache", *nvrtc, ATTNSMITH_LOG="loud")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^a set of \d+ kernels with head_dim_qk 64 on device 0$")
        self.assertEqual(done.stdout.count("status: clean"), 2)
        self.assertIn("\n0 pieces of memory are left", done.stdout)
        self.assertIn("info: ", done.stderr)

    def test_words_requests_and_errors_need_no_gpu(self):
        printed = self.output_of(self.build("requests_and_errors"), MODEL, FAKE_CUDA_DEVICES="0")
        self.assertIn("e4m3 has 1 byte, and needs scales of each token", printed)
        self.assertRegex(printed, r"(?m)^\d+ specs; ")
        kinds = re.findall(r'^(\w+): \{"code":"(\w+)"', printed, re.MULTILINE)
        self.assertEqual([kind for kind, _ in kinds], ["invalid_request", "unsupported", "cache_error", "driver_error"])
        self.assertTrue(all(kind == code for kind, code in kinds))
        with_gpu = self.output_of(self.build("requests_and_errors"), MODEL)
        self.assertRegex(with_gpu, r'(?m)^kernel_missing: ')
        self.assertIn('"device": 0', with_gpu)

    def test_a_cache_is_built_shipped_and_deleted(self):
        printed = self.output_of(self.build("cache_care"), self.folder, FAKE_CUDA_DEVICES="0")
        for line in (r"1 of 1: \{", "1 entries, 1 compiled here", "merge.* is a hit", "1 entries in a bundle, signed by [0-9a-f]{16}",
                     "1 entries in an image, sha256:", "1 entries are imported", "1 entry removed by its key", "0 entries deleted"):
            self.assertRegex(printed, f"(?m)^{line}")

    @unittest.skipIf("ATTNSMITH_BIN" not in os.environ, "the command is not built")
    def test_an_image_serves_from_its_bundle_without_a_compiler(self):
        path = f"{pathlib.Path(os.environ['ATTNSMITH_BIN']).parent}:{os.environ['PATH']}"
        bundle = self.folder / "kernels.bundle"
        self.output_of(EXAMPLES / "container/prewarm.sh", MODEL, "80,90", bundle, PATH=path)
        lines = re.findall(r"^ENV (\w+)=(\S+)$", (EXAMPLES / "container/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(len(lines), 2)
        image = {name: value.replace("/var/cache/attnsmith", str(self.folder / "later")).replace(
            "/opt/attnsmith/kernels.bundle", str(bundle)) for name, value in lines}
        self.assertRegex(self.output_of(self.build("paged_decode"), **image), r"launched .* twice")
        bundle.unlink()
        done = self.run_program(self.build("paged_decode"), **image)
        self.assertEqual(done.returncode, 1)
        self.assertIn("prewarm", done.stderr)

    @unittest.skipIf("ATTNSMITH_LIBRARY" not in os.environ, "an instrumented library")
    def test_python(self):
        printed = self.output_of(*self.python("plan")).splitlines()
        self.assertRegex(printed[1], "^attention: attention ")
        self.assertIn("full_attention/decode on SM 90: ", "\n".join(printed))
        self.assertIn("head_dim", printed[-1])
        printed = self.output_of(*self.python("models", MODEL, self.folder / "kernels"), FAKE_CUDA_DEVICES="0")
        self.assertIn("full_attention/decode: 32 layers, 32 heads", printed)
        self.assertTrue(printed.endswith("all kernels are in the cache\n"), printed)
        printed = self.output_of(*self.python("cache", self.folder), FAKE_CUDA_DEVICES="0").splitlines()
        self.assertEqual(printed[-4:-1], ["3 entries for the program", "planning finds a hit", "3 kernels are ready"])
        self.assertEqual(self.output_of(*self.python("errors")).count("\n"), 6)
        printed = self.output_of(*self.python("engine"))
        self.assertIn("GPU 0", printed)
        self.assertTrue(printed.endswith("the first is 0\n"), printed)

    @unittest.skipIf("ATTNSMITH_LIBRARY" not in os.environ, "an instrumented library")
    def test_python_without_a_gpu_says_what_it_needs(self):
        without = {"FAKE_CUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}
        for file in sorted((EXAMPLES / "python").glob("*.py")):
            if file.stem not in ("plan", "models", "cache", "errors"):
                done = self.run_program(*self.python(file.stem), **without)
                self.assertEqual((done.returncode, done.stdout), (1, ""), file.stem)
                self.assertRegex(done.stderr, r"^this example needs .+\n$", file.stem)

    def python(self, name, *arguments):
        self.environment["PYTHONPATH"] = str(REPOSITORY / "tools/python")
        return sys.executable, "-B", EXAMPLES / f"python/{name}.py", *arguments


# A name before a bracket: of a function that is declared, and in an inline body of one that is called.
CALL = re.compile(r"(?<![\w.:>~])([a-z_]\w*)\(")
NO_FUNCTIONS = {"decltype", "defined", "if", "switch", "operator", "bool", "void"}


def code(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/|^#[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)


def public_functions(header):
    """The functions that a header declares for programs: no private ones, and none that is deprecated."""
    text = re.sub(r"\n  (?:private|protected):.*?\n\};", "\n};", code(header), flags=re.DOTALL)
    text = re.sub(r"\[\[deprecated[^;{]*[;{]|\breturn\b[^;]*;", "", text)
    return {found[1] for found in CALL.finditer(text)} - NO_FUNCTIONS


HEADER = """// A header(of a test).
#if defined(X)
class A {
  public:
    A();
    explicit operator bool() const noexcept { return held(impl_); }
    [[deprecated("use b()")]] int a() const { return b(); }
    std::vector<int> b(int (*c)[2]) const;

  private:
    void d();
};
template <> std::optional<int> e<int>(std::string_view word);
[[nodiscard]] int f(/* g() */ int);
#endif
"""


class PublicFunctions(unittest.TestCase):
    def test_an_example_shows_each(self):
        declared = set().union(*(public_functions(header.read_text(encoding="utf-8"))
                                 for header in (REPOSITORY / "runtime/include/attnsmith").glob("*.hpp")))
        self.assertLessEqual({"prepare", "to_json", "make_signing_key", "details_json", "is_fp8", "from_word"}, declared)
        shown = "".join(code(program.read_text(encoding="utf-8")) for program in (EXAMPLES / "cpp").glob("*.cpp"))
        self.assertEqual([name for name in sorted(declared) if not re.search(rf"\b{name}(?:<[^<>;]*>)?\(", shown)], [])

    def test_what_is_public_is_read_from_a_header(self):
        self.assertEqual(public_functions(HEADER), {"b", "f"})


if __name__ == "__main__":
    unittest.main()
