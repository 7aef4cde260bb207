"""The tree keeps to the one-way dependencies of the design, and the checker sees each kind of violation."""

import pathlib
import re
import unittest

import include_edges
import include_picture

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]

# A file of each part, so that edges have something to point to.
SKELETON = {
    "runtime/include/attnsmith/types.hpp": "#include <cstdint>\n",
    "runtime/include/attnsmith/version.hpp.in": "",
    "runtime/problem/problem.hpp": '#include "attnsmith/types.hpp"\n#include <fmt/format.h>\n',
    "runtime/ops/op.hpp": '#include "problem/problem.hpp"\n',
    "runtime/models/models.hpp": '#include "problem/problem.hpp"\n',
    "runtime/settings/settings.hpp": '#include "cache/store.hpp"\n',
    "runtime/cubins/cubins.hpp": '#include "settings/settings.hpp"\n',
    "runtime/families/family.hpp": '#include "problem/problem.hpp"\n#include "abi/shared.h"\n',
    "runtime/families/quick/family.hpp": '#include "families/family.hpp"\n#include "families/quick/tiles.hpp"\n',
    "runtime/families/quick/tiles.hpp": "",
    "runtime/families/slow/family.hpp": "",
    "runtime/families/registry/registry.cpp": '#include "families/quick/family.hpp"\n#include "families/slow/family.hpp"\n',
    "runtime/planner/plan.hpp": '#include "families/family.hpp"\n',
    "runtime/compiler/nvrtc.hpp": '#include <nvrtc.h>\n#include "attnsmith/types.hpp"\n',
    "runtime/driver/api.hpp": '#include <cuda.h>\n#include "attnsmith/types.hpp"\n',
    "runtime/engine/engine.cpp": '#include "cache/store.hpp"\n#include "driver/api.hpp"\n#include "compiler/nvrtc.hpp"\n',
    "runtime/reports/report.hpp": '#include "engine/engine.hpp"\n',
    "runtime/c_api/objects.hpp": '#include "reports/report.hpp"\n#include "attnsmith/types.hpp"\n',
    "cache/store.hpp": "#include <string>\n#include <sys/file.h>\n",
    "kernel_templates/abi/shared.h": "#include <cstdint>\n",
    "kernel_templates/common/copy.cuh": '#include "abi/shared.h"\n',
    "tools/cli/main.cpp": '#include "engine/engine.hpp"\n',
    "runtime/engine/engine.hpp": '#include "attnsmith/version.hpp"\n',
    "tests/cpu/a_test.cpp": '#include <cuda.h>\n#include "common/copy.cuh"\n#include "cli/main.hpp"\n',
    "tools/cli/main.hpp": "",
}


def check(extra):
    """The violations of the skeleton with `extra` files laid over it."""
    return include_edges.violations(include_edges.Tree({**SKELETON, **extra}))


class Repository(unittest.TestCase):
    def test_keeps_the_rules(self):
        found = include_edges.violations(include_edges.Tree.at(REPOSITORY))
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_folders_have_no_cycle(self):
        found = include_edges.folder_cycles(include_edges.Tree.at(REPOSITORY))
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_units_have_no_cycle(self):
        found = include_edges.unit_cycles(include_edges.Tree.at(REPOSITORY))
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_every_part_is_there(self):
        sources = include_edges.Tree.at(REPOSITORY).sources()
        parts = {include_edges.part_of(file) for file in sources}
        self.assertEqual(parts, set(include_edges.PARTS.values()))


class Pages(unittest.TestCase):
    """docs/architecture.md says what the rules say."""

    def test_the_picture_is_drawn_from_the_rules(self):
        self.assertEqual(include_picture.PICTURE.read_text(encoding="utf-8"), include_picture.draw(include_edges.MAY_INCLUDE),
                         "to draw it again: tests/cpu/architecture/include_picture.py --write")

    def test_each_box_has_a_place_of_its_own(self):
        places = re.findall(r'<rect x="(\d+)" y="(\d+)"', include_picture.PICTURE.read_text(encoding="utf-8"))
        self.assertEqual(len(places), len(include_edges.MAY_INCLUDE))
        self.assertEqual(len(set(places)), len(places))

    def test_the_table_has_every_part_and_what_it_may_include(self):
        table = {}
        for line in (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 4 and cells[1].strip("`") in include_edges.PARTS:
                self.assertEqual(include_edges.PARTS[cells[1].strip("`")], cells[0])
                table[cells[0]] = set(cells[3].split(", ")) - {"nothing of ours"}
        self.assertEqual(table, include_edges.MAY_INCLUDE)

    def test_an_arrow_that_others_replace_is_not_drawn(self):
        self.assertEqual(include_picture.arrows({"a": {"b", "c"}, "b": {"c"}, "c": set()}), {"a": {"b"}, "b": {"c"}, "c": set()})


class Rules(unittest.TestCase):
    def test_the_skeleton_is_clean(self):
        self.assertEqual(check({}), [])

    def test_a_cycle_of_folders_is_found(self):
        def cycles(extra):
            return include_edges.folder_cycles(include_edges.Tree({**SKELETON, **extra}))

        self.assertEqual(cycles({}), [])
        self.assertEqual(cycles({"cache/files/file.cpp": '#include "cache/store.hpp"\n'}), [])
        cycle = {"cache/files/file.cpp": '#include "cache/names/name.hpp"\n', "cache/names/name.hpp": "",
                 "cache/names/name.cpp": '#include "cache/bundles/bundle.hpp"\n', "cache/bundles/bundle.hpp": "",
                 "cache/bundles/bundle.cpp": '#include "cache/files/file.hpp"\n', "cache/files/file.hpp": "",
                 "cache/above.cpp": '#include "cache/names/name.hpp"\n'}
        self.assertEqual(cycles(cycle), [
            "cache/bundles -> cache/files: cache/bundles/bundle.cpp includes cache/files/file.hpp",
            "cache/files -> cache/names: cache/files/file.cpp includes cache/names/name.hpp",
            "cache/names -> cache/bundles: cache/names/name.cpp includes cache/bundles/bundle.hpp"])

    def test_a_cycle_of_units_is_found(self):
        def cycles(extra):
            return include_edges.unit_cycles(include_edges.Tree({**SKELETON, **extra}))

        self.assertEqual(cycles({}), [])
        self.assertEqual(cycles({"cache/store.cpp": '#include "cache/store.hpp"\n#include "cache/name.hpp"\n',
                                 "cache/name.hpp": ""}), [])
        self.assertEqual(cycles({"cache/store.cpp": '#include "cache/name.hpp"\n', "cache/name.hpp": "",
                                 "cache/name.cpp": '#include "cache/name.hpp"\n#include "cache/store.hpp"\n',
                                 "cache/above.cpp": '#include "cache/name.hpp"\n'}), [
            "cache/name -> cache/store: cache/name.cpp includes cache/store.hpp",
            "cache/store -> cache/name: cache/store.cpp includes cache/name.hpp"])
        self.assertEqual(cycles({"kernel_templates/common/copy.cuh": '#include "common/a.cuh"\n',
                                 "kernel_templates/common/a.cuh": '#include "common/b.cuh"\n',
                                 "kernel_templates/common/b.cuh": '#include "common/copy.cuh"\n#include "abi/shared.h"\n'}), [
            "kernel_templates/common/a -> kernel_templates/common/b: "
            "kernel_templates/common/a.cuh includes kernel_templates/common/b.cuh",
            "kernel_templates/common/b -> kernel_templates/common/copy: "
            "kernel_templates/common/b.cuh includes kernel_templates/common/copy.cuh",
            "kernel_templates/common/copy -> kernel_templates/common/a: "
            "kernel_templates/common/copy.cuh includes kernel_templates/common/a.cuh"])

    def test_a_path_between_two_cycles_is_no_cycle(self):
        cycle = {f"cache/{a}.hpp": "".join(f'#include "cache/{b}.hpp"\n' for b in others)
                 for a, others in {"a": "b", "b": "ac", "c": "d", "d": "c"}.items()}
        found = include_edges.unit_cycles(include_edges.Tree({**SKELETON, **cycle}))
        self.assertEqual([line.split(":")[0] for line in found],
                         ["cache/a -> cache/b", "cache/b -> cache/a", "cache/c -> cache/d", "cache/d -> cache/c"])

    def test_dependencies_have_no_cycle(self):
        remaining = {part: set(others) for part, others in include_edges.MAY_INCLUDE.items()}
        while remaining:
            free = {part for part, others in remaining.items() if not others & remaining.keys()}
            self.assertTrue(free, f"a cycle among {sorted(remaining)}")
            for part in free:
                del remaining[part]

    def test_each_forbidden_edge_is_found(self):
        headers = {include_edges.part_of(file): file for file in reversed(SKELETON)
                   if file.endswith((".h", ".hpp", ".cuh"))}
        folders = {part: folder for folder, part in include_edges.PARTS.items()}
        self.assertEqual(set(headers), set(folders) - {"tests"})
        tried = 0
        for part, folder in folders.items():
            for other, header in headers.items():
                if other == part or other in include_edges.MAY_INCLUDE[part]:
                    continue
                with self.subTest(part=part, other=other):
                    found = check({f"{folder}/broken.hpp": f'\n#include "{header}"\n'})
                    self.assertEqual(found, [f"{folder}/broken.hpp:2: {part} includes {other} ({header})"])
                tried += 1
        self.assertGreater(tried, 40)

    def assert_refused(self, file, text, *words):
        found = check({file: text})
        self.assertEqual(len(found), 1, found)
        for word in [file, *words]:
            self.assertIn(word, found[0])

    def test_nvrtc_belongs_to_the_compiler(self):
        for folder in ("runtime/engine", "runtime/driver", "tools/cli", "cache"):
            self.assert_refused(f"{folder}/broken.cpp", "#include <nvrtc.h>\n", "compiler's alone")

    def test_cuda_belongs_to_the_driver(self):
        for folder in ("runtime/engine", "runtime/compiler", "tools/cli", "runtime/include/attnsmith"):
            self.assert_refused(f"{folder}/broken.hpp", "#include <cuda.h>\n", "driver's alone")

    def test_the_toolkit_is_included_nowhere(self):
        for header in ("cuda_fp16.h", "cuda_runtime.h", "cuda/std/array", "cute/tensor.hpp", "mma.h", "vector_types.h"):
            self.assert_refused("runtime/driver/broken.cpp", f"#include <{header}>\n", "CUDA toolkit")

    def test_device_code_includes_our_files_alone(self):
        for header in ("cuda_fp16.h", "stdint.h", "cuda/barrier", "type_traits"):
            self.assert_refused("kernel_templates/common/broken.cuh", f"#include <{header}>\n", header)
            self.assert_refused("kernel_templates/abi/broken.h", f"#include <{header}>\n", header)

    def test_public_headers_include_the_standard_library_alone(self):
        for header in ("fmt/format.h", "nlohmann/json.hpp", "stdint.h", "sys/types.h"):
            self.assert_refused("runtime/include/attnsmith/broken.hpp", f"#include <{header}>\n", header)

    def test_the_public_header_of_the_c_abi_includes_c(self):
        self.assertEqual(check({"runtime/include/attnsmith/c.h": "#include <stddef.h>\n#include <stdint.h>\n"}), [])
        self.assert_refused("runtime/include/attnsmith/c.h", "#include <unistd.h>\n", "unistd.h")

    def test_nothing_includes_the_c_abi(self):
        for folder in ("runtime/engine", "tools/cli", "tests/c_api"):
            self.assert_refused(f"{folder}/broken.cpp", '#include "c_api/objects.hpp"\n', "includes c_api")

    def test_a_family_is_known_to_the_registry_alone(self):
        include = '#include "families/quick/family.hpp"\n'
        for file in ("runtime/families/slow/broken.cpp", "runtime/families/cost.cpp", "runtime/planner/broken.cpp",
                     "runtime/engine/broken.cpp", "tools/cli/broken.cpp"):
            self.assert_refused(file, include, "the family quick's own")
        self.assertEqual(check({"tests/cpu/families/a_test.cpp": include}), [])

    def test_an_op_is_known_to_its_registry_alone(self):
        ops = {"runtime/ops/fast/op.hpp": ""}
        include = '#include "ops/fast/op.hpp"\n'
        for file in ("runtime/ops/other/broken.cpp", "runtime/ops/op.cpp", "runtime/planner/broken.cpp"):
            self.assertTrue(any("the op fast's own" in line for line in check({**ops, file: include})), file)
        self.assertEqual(check({**ops, "runtime/ops/registry/registry.cpp": include, "runtime/planner/a.cpp": '#include "ops/op.hpp"\n'}), [])

    def test_angle_brackets_hide_nothing(self):
        self.assert_refused("cache/broken.cpp", "  #  include <driver/api.hpp> // why not\n", "cache includes driver")

    def test_paths_are_named_from_a_root(self):
        self.assert_refused("cache/broken.cpp", '#include "../runtime/driver/api.hpp"\n', "without ..")

    def test_an_unknown_file_is_refused(self):
        self.assert_refused("cache/broken.cpp", '#include "stroe.hpp"\n', "no file of this tree")

    def test_a_macro_is_refused(self):
        self.assert_refused("cache/broken.cpp", "#include HEADER\n", "macro")

    def test_a_source_file_is_refused(self):
        self.assert_refused("tools/cli/broken.cpp", '#include "cli/main.cpp"\n', "source file")

    def test_a_new_part_needs_a_rule(self):
        self.assert_refused("runtime/extra/broken.cpp", "#include <string>\n", "no part of the design")

    def test_comments_are_no_includes(self):
        self.assertEqual(check({"cache/fine.cpp": '// #include "driver/api.hpp"\n/*\n#include "driver/api.hpp"\n*/\n'}), [])


if __name__ == "__main__":
    unittest.main()
