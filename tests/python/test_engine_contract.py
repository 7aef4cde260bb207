"""tools/engines/contract.py with a made-up package, and the tables that are committed."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import made_up_vllm

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOOL = REPOSITORY / "tools/engines/contract.py"
TABLES = sorted((REPOSITORY / "tools/engines/vllm").glob("*.json"))
SECTIONS = {"schema", "engine", "release", "classes", "functions", "literals", "variables", "plugins", "layers", "backends",
            "reads"}
BACKEND = "v1/attention/backend.py"
LARGEST = 100_000  # bytes of a table
# Classes that an adapter derives from or is given; every release has them.
CLASSES = {"AttentionBackend", "AttentionImplBase", "AttentionImpl", "MLAAttentionImpl", "AttentionMetadataBuilder",
           "CommonAttentionMetadata", "AttentionCGSupport", "AttentionType", "MultipleOf", "AttentionLayer",
           "AttentionBackendEnum", "MLACommonBackend", "MLACommonImpl", "MLACommonMetadataBuilder", "MLACommonMetadata",
           "MLACommonDecodeMetadata", "MLACommonPrefillMetadata", "KVQuantMode", "KVCacheSpec", "AttentionSpec",
           "FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec"}


class ToolTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-contract-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_tool(self, *arguments):
        result = subprocess.run([sys.executable, "-B", TOOL, *map(str, arguments)], cwd=self.folder, capture_output=True,
                                text=True, timeout=120, check=False)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def package(self, changes=None, name="source"):
        return made_up_vllm.write(self.folder / name, changes)

    def table(self, source, *arguments):
        result = self.run_tool(source, *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def assert_error(self, result, *words):
        """Exit code 2, nothing on standard output, and one line with the words on standard error."""
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertTrue(result.stderr.startswith("contract.py: error: "), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)


class Table(ToolTest):
    def setUp(self):
        super().setUp()
        self.made = self.table(self.package())
        self.classes = self.made["classes"]

    def test_sections_and_release(self):
        self.assertEqual(set(self.made), SECTIONS)
        self.assertEqual((self.made["schema"], self.made["engine"], self.made["release"]),
                         ("attnsmith.engine-contract/1", "vllm", "1.2.3"))

    def test_methods(self):
        methods = self.classes["AttentionBackend"]["methods"]
        self.assertEqual(methods["get_name"],
                         {"kind": "static", "abstract": True, "arguments": [], "raises": "NotImplementedError"})
        self.assertEqual(methods["supports_sink"], {"kind": "class", "arguments": [], "returns": "False"})
        self.assertEqual(methods["get_supported_kernel_block_sizes"]["returns"], "[MultipleOf(16)]")
        self.assertEqual(methods["supports_head_size"], {"kind": "class", "arguments": [
            "head_size", "/", "default=torch.int8", "*", "limit=-1", "table={1: (2, 3)}", "other=...", "**rest"]})
        self.assertEqual(self.classes["AttentionImpl"]["methods"]["forward"]["arguments"],
                         ["layer", "query", "attn_type=AttentionType.DECODER", "output=None"])
        common = self.classes["CommonAttentionMetadata"]["methods"]
        self.assertEqual(common["seq_lens_cpu"], {"kind": "property", "arguments": []})

    def test_attributes_and_what_instances_have(self):
        self.assertEqual(self.classes["AttentionBackend"]["attributes"],
                         {"supported_dtypes": "[torch.float16, torch.bfloat16]", "takes_update": "True"})
        self.assertEqual(self.classes["AttentionLayer"]["attributes"], {"_k_scale": None})
        self.assertEqual(self.classes["AttentionImplBase"]["instance"], ["dcp_rank"])
        self.assertEqual(self.classes["AttentionMetadataBuilder"]["instance"], ["_hidden", "kv_cache_spec"])
        self.assertEqual(self.classes["AttentionImpl"]["bases"], ["AttentionImplBase", "Generic"])

    def test_enums_and_fields(self):
        self.assertEqual(self.classes["AttentionCGSupport"]["members"], ["ALWAYS=3", "NEVER=0"])
        self.assertEqual(self.classes["AttentionBackendEnum"]["members"][1], "CUSTOM=None")
        self.assertEqual(self.classes["QueryLenSupport"]["members"], ["SINGLE_ONLY=auto()"])
        self.assertEqual(self.classes["DeviceCapability"]["fields"], ["major", "minor=0"])
        common = self.classes["CommonAttentionMetadata"]
        self.assertEqual((common["fields"], common["attributes"]), (["num_reqs", "causal=True"], {"kind": "3"}))
        spec = self.classes["AttentionSpec"]
        self.assertEqual((spec["keyword_fields"], spec["dataclass"]), (["num_kv_heads", "kv_quant_mode=KVQuantMode.NONE"],
                                                                       {"frozen": "True", "kw_only": "True"}))
        chunk = self.classes["MLACommonPrefillMetadata.Chunk"]
        self.assertEqual((chunk["fields"], chunk["keyword_fields"], chunk["fields_without_argument"]),
                         (["starts=list()"], ["total=0"], ["cached=0"]))

    def test_bases_and_the_family_of_specs_are_added(self):
        self.assertIn("MLABase", self.classes)
        self.assertIn("WindowSpec", self.classes)
        self.assertNotIn("MambaSpec", self.classes)

    def test_functions_literals_variables_and_groups(self):
        functions = self.made["functions"]
        self.assertEqual(set(functions), {"cdiv", "get_dcp_group", "register_backend"})
        self.assertEqual(functions["cdiv"], {"module": "vllm.utils.math", "arguments": ["a", "b"]})
        self.assertEqual(self.made["literals"], {"CacheDType": {"module": "vllm.config.cache", "values": ["auto", "fp8"]}})
        self.assertEqual(self.made["variables"], {"VLLM_BATCH_INVARIANT": {"module": "vllm.envs", "value": "False"}})
        self.assertEqual(self.made["plugins"], {"DEFAULT_PLUGINS_GROUP": "vllm.general_plugins"})

    def test_built_in_backends(self):
        flash = self.made["backends"]["FlashAttentionBackend"]
        self.assertEqual(flash["backend"]["overrides"], ["get_name", "takes_update"])
        self.assertEqual((flash["impl"]["class"], flash["impl"]["overrides"]), ("FlashAttentionImpl", ["forward"]))
        self.assertEqual(flash["impl"]["adds"], {
            "do_kv_cache_update": {"kind": "instance", "arguments": ["layer", "key", "value"], "returns": "None"}})
        self.assertEqual({name: flash["imports"][name] for name in ("vllm.config.VllmConfig", "vllm.utils.math.cdiv",
                                                                    "vllm.platforms.current_platform")},
                         {"vllm.config.VllmConfig": "class", "vllm.utils.math.cdiv": "function",
                          "vllm.platforms.current_platform": "value"})

    def test_what_the_engine_reads(self):
        reads, layer = self.made["reads"], "vllm/model_executor/layers/attention/attention.py"
        self.assertEqual(reads["backend"], {
            "takes_update": {layer: ["read"]}, "get_name": {layer: ["call(0)"]}, "get_impl_cls": {layer: ["call(0)"]}})
        self.assertEqual(reads["impl"], {
            "forward": {layer: ["call(1, *, output=)"]}, "num_heads": {layer: ["set"]}, "dcp_rank": {layer: ["getattr"]},
            "do_kv_cache_update": {layer: ["hasattr"]},
            "forward_mqa": {"vllm/model_executor/layers/attention/mla_attention.py": ["call(1)"]}})
        self.assertEqual(reads["builder"], {"build": {"vllm/v1/worker/runner.py": ["call(2, fast_build=)"]}})

    def test_no_docstring_is_kept(self):
        self.assertNotIn("Words that no table has", json.dumps(self.made))


class Sources(ToolTest):
    def test_the_package_itself_a_wheel_and_the_folder_give_one_table(self):
        folder = self.package()
        wheel = made_up_vllm.write_wheel(self.folder / "vllm-1.2.3-cp38-abi3-linux_x86_64.whl")
        tables = [self.run_tool(source).stdout for source in (folder, folder / "vllm", wheel)]
        self.assertEqual(len(set(tables)), 1)
        self.assertEqual(json.loads(tables[0])["release"], "1.2.3")

    def test_release_and_output(self):
        file = self.folder / "table.json"
        result = self.run_tool(self.package(), "--release", "9.9", "--output", file)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        text = file.read_text(encoding="utf-8")
        self.assertEqual(json.loads(text)["release"], "9.9")
        self.assertEqual(text, stable_text(json.loads(text)))
        self.assert_error(self.run_tool(self.package(), "--output", self.folder / "none/table.json"), "none/table.json")

    def test_a_class_that_has_moved_is_found(self):
        moved = made_up_vllm.SPECS.partition("@dataclass(frozen=True)")
        changes = {"v1/kv_cache_interface.py": moved[1] + moved[2], "v1/quant_mode.py": moved[0]}
        changes["v1/kv_cache_interface.py"] = "from vllm.v1.quant_mode import *\n" + changes["v1/kv_cache_interface.py"]
        self.assertEqual(self.table(self.package(changes))["classes"]["KVQuantMode"]["module"], "vllm.v1.quant_mode")

    def test_the_sources_are_not_imported(self):
        self.package({"__init__.py": "raise SystemExit('imported')\n"})
        self.assertEqual(self.table(self.folder / "source")["release"], "1.2.3")


class Errors(ToolTest):
    def test_a_missing_class(self):
        changes = {BACKEND: made_up_vllm.BACKEND.replace("class AttentionImplBase", "class Renamed")}
        self.assert_error(self.run_tool(self.package(changes)), "vllm/v1/attention/backend.py", "class AttentionImplBase")

    def test_a_missing_file(self):
        result = self.run_tool(self.package({"v1/attention/backends/triton_attn.py": None}))
        self.assert_error(result, "vllm/v1/attention/backends/triton_attn.py", "class TritonAttentionBackend")

    def test_other_facts_that_are_missing(self):
        for file, text, words in (("plugins/__init__.py", "", ["NAME_GROUP"]), ("config/cache.py", "", ["CacheDType"]),
                                  ("_version.py", "", ["--release"]),
                                  ("v1/attention/backends/registry.py", made_up_vllm.REGISTRY.partition("def ")[0],
                                   ["function register_backend"]),
                                  ("v1/attention/backends/flash_attn.py",
                                   made_up_vllm.FLASH.replace("return FlashAttentionImpl", "return 1"),
                                   ["FlashAttentionBackend.get_impl_cls"])):
            with self.subTest(file=file):
                self.assert_error(self.run_tool(self.package({file: text})), "vllm/" + file, *words)

    def test_a_syntax_error(self):
        result = self.run_tool(self.package({BACKEND: "x = 1\nclass :\n"}))
        self.assert_error(result, "vllm/v1/attention/backend.py:2: expected Python %d.%d" % sys.version_info[:2])

    def test_a_file_that_is_no_text(self):
        (self.package() / "vllm" / BACKEND).write_bytes(b"\xff\xfe\x00")
        self.assert_error(self.run_tool(self.folder / "source"), "vllm/v1/attention/backend.py: expected UTF-8")

    def test_sources_that_are_none(self):
        empty = self.folder / "empty"
        empty.mkdir()
        (self.folder / "broken.whl").write_bytes(b"PK but no archive")
        self.assert_error(self.run_tool(empty), "empty: expected vllm/__init__.py")
        self.assert_error(self.run_tool("nowhere"), "nowhere: expected a folder or a wheel")
        self.assert_error(self.run_tool("broken.whl"), "broken.whl: expected a folder or a wheel")

    def test_arguments(self):
        for arguments in ((), ("a", "--compare", "b", "c"), ("--compare", "a", "b", "--release", "1")):
            result = self.run_tool(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn("contract.py: error: ", result.stderr)

    def test_help_has_an_example(self):
        result = self.run_tool("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("contract.py --compare tools/engines/vllm/", " ".join(result.stdout.split()))


class Comparison(ToolTest):
    def compare(self, changes):
        for name, its_changes in (("one", None), ("two", changes)):
            self.run_tool(self.package(its_changes, name), "--output", f"{name}.json")
        result = self.run_tool("--compare", "one.json", "two.json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.splitlines()

    def test_equal_tables(self):
        self.assertEqual(self.compare(None), [])

    def test_changes_are_one_line_each(self):
        changed = made_up_vllm.BACKEND
        for old, new in (("sizes():", "sizes(kv_cache_spec=None):"), ("        return False", "        return True"),
                         ("takes_update: bool = True", "takes_update: bool = False"),
                         ("    NEVER = 0", "    SOME = 1\n    NEVER = -1"),
                         ("    num_reqs: int\n", "    num_reqs: int\n    rows: int = 0\n"),
                         ("forward(self, layer, query,", "forward(self, query, layer,")):
            self.assertIn(old, changed)
            changed = changed.replace(old, new)
        self.assertEqual(self.compare({BACKEND: changed}), [
            "changed class AttentionBackend: attribute takes_update: True -> False",
            "changed class AttentionBackend: method get_supported_kernel_block_sizes: argument kv_cache_spec=None added",
            "changed class AttentionBackend: method supports_sink: returns: False -> True",
            "changed class AttentionCGSupport: member NEVER: 0 -> -1",
            "added   class AttentionCGSupport: member SOME 1",
            "changed class AttentionImpl: method forward: order of arguments: query, layer, attn_type, output",
            "added   class CommonAttentionMetadata: field rows 0"])

    def test_what_one_side_lacks_is_one_line(self):
        changes = {"v1/kv_cache_interface.py": made_up_vllm.SPECS.replace("WindowSpec", "OtherSpec"),
                   "config/cache.py": "from typing import Literal\nCacheDType = Literal['auto', 'int8']\n",
                   "v1/attention/backends/utils.py": "def get_kv_cache_layout():\n    return _read()\n",
                   "v1/worker/runner.py": None}
        self.assertEqual(self.compare(changes), [
            "added   class OtherSpec: vllm.v1.kv_cache_interface",
            "removed class WindowSpec: vllm.v1.kv_cache_interface",
            "removed engine reads builder.build: call(2, fast_build=)",
            "added   function get_kv_cache_layout: vllm.v1.attention.backends.utils ()",
            "removed literal CacheDType: value fp8",
            "added   literal CacheDType: value int8"])

    def test_files_that_are_no_tables(self):
        table = TABLES[0]
        (self.folder / "other.json").write_text('{"schema": "attnsmith.engine-contract/9"}', encoding="ascii")
        (self.folder / "text.json").write_text("no JSON", encoding="ascii")
        self.assert_error(self.run_tool("--compare", table, "other.json"),
                          "other.json: expected schema attnsmith.engine-contract/1")
        (self.folder / "part.json").write_text('{"schema": "attnsmith.engine-contract/1"}', encoding="ascii")
        self.assert_error(self.run_tool("--compare", table, "part.json"), "part.json: expected the sections backends, classes")
        self.assert_error(self.run_tool("--compare", "text.json", table), "text.json: expected a table")
        self.assert_error(self.run_tool("--compare", "none.json", table), "none.json: expected a table")


def stable_text(table):
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


class Committed(ToolTest):
    def test_there_are_tables(self):
        self.assertGreaterEqual(len(TABLES), 4)
        self.assertTrue(os.access(TOOL, os.X_OK))

    def test_form_and_size(self):
        for file in TABLES:
            with self.subTest(release=file.stem):
                text = file.read_text(encoding="ascii")
                table = json.loads(text)
                self.assertEqual(text, stable_text(table))
                self.assertLess(len(text), LARGEST)
                self.assertEqual((table["schema"], table["engine"], table["release"]),
                                 ("attnsmith.engine-contract/1", "vllm", file.stem))
                self.assertEqual(set(table), SECTIONS)

    def test_they_have_the_classes(self):
        for file in TABLES:
            with self.subTest(release=file.stem):
                table = json.loads(file.read_text(encoding="utf-8"))
                self.assertEqual(CLASSES - set(table["classes"]), set())
                self.assertTrue(table["classes"]["AttentionBackend"]["methods"]["get_name"]["abstract"])
                self.assertIn("register_backend", table["functions"])
                self.assertIn("auto", table["literals"]["CacheDType"]["values"])
                self.assertIn("vllm.general_plugins", table["plugins"].values())
                self.assertEqual(set(table["backends"]),
                                 {"FlashAttentionBackend", "FlashAttnMLABackend", "TritonAttentionBackend"})
                self.assertIn("forward", table["reads"]["impl"])

    def test_values_are_short(self):
        """A table has names and literals. A long text would be code or words of the engine."""
        for file in TABLES:
            for line in file.read_text(encoding="utf-8").splitlines():
                self.assertLess(len(line), 200, file.name)

    def test_two_of_them_can_be_compared(self):
        for older, newer in zip(TABLES, TABLES[1:]):
            result = self.run_tool("--compare", older, newer)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertTrue(all(line.startswith(("added ", "removed ", "changed ")) for line in result.stdout.splitlines()))


if __name__ == "__main__":
    unittest.main()
