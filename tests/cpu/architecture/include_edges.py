"""Which part of the tree may include which: the rules, and a checker over a tree's #include lines.

The parts are folders. `problem <- ops, families <- planner`, and `problem <- models`; `compiler` and `driver` depend on nothing of ours
but the public headers, and `cache` not even on those; `settings <- cubins <- engine <- reports` join all; nothing includes `c_api`,
the C ABI; `tools` and `tests` come after. Each family of kernels has a folder in `families`, and each op one in `ops`, which
the registry there alone includes: a family, and an op, knows what all share, and no other. Within a part, too, folders include each other in one direction, and so
do units, a header and its source file. The checker returns one line of text a violation and knows nothing of the compiler: a
missing file is a violation, too.
"""

import pathlib
import re

# The longest folder that holds a file decides.
PARTS = {
    "runtime/include/attnsmith": "public",
    "runtime/problem": "problem",
    "runtime/ops": "ops",
    "runtime/models": "models",
    "runtime/families": "families",
    "runtime/planner": "planner",
    "runtime/compiler": "compiler",
    "runtime/driver": "driver",
    "runtime/settings": "settings",
    "runtime/cubins": "cubins",
    "runtime/engine": "engine",
    "runtime/reports": "reports",
    "runtime/c_api": "c_api",
    "cache": "cache",
    "kernel_templates": "templates",
    "kernel_templates/abi": "abi",
    "tools": "tools",
    "tests": "tests",
}

# What a part may include beside itself.
MAY_INCLUDE = {
    "public": set(),
    "problem": {"public"},
    "ops": {"problem", "public"},
    "models": {"problem", "public"},
    "families": {"problem", "public", "abi"},
    "planner": {"ops", "families", "problem", "public", "abi"},
    "compiler": {"public"},
    "driver": {"public"},
    "cache": set(),
    "settings": {"cache", "compiler", "problem", "public"},
    "cubins": {"settings", "cache", "compiler", "driver", "planner", "families", "problem", "public"},
    "engine": {"cubins", "settings", "cache", "compiler", "driver", "planner", "ops", "families", "problem", "public", "abi"},
    "reports": {"engine", "cubins", "settings", "cache", "families", "problem", "public"},
    "c_api": {"reports", "problem", "public"},
    "abi": set(),
    "templates": {"abi"},
    "tools": {"reports", "engine", "cubins", "settings", "models", "ops", "cache", "compiler", "driver", "planner", "families", "problem",
              "public", "abi"},
    "tests": {"tools", "reports", "engine", "cubins", "settings", "models", "ops", "cache", "compiler", "driver", "planner", "families",
              "problem", "public", "abi", "templates"},
}

# Folders of folders that know what all of them share, and none of the others. Each one's registry is the list of them.
SINGLES = {"runtime/families/": "family", "runtime/ops/": "op"}
REGISTRY = "registry/registry.cpp"

# Headers that one part alone may include. Tests are free: they fake the driver.
OWNERS = {"nvrtc.h": "compiler", "cuda.h": "driver"}

# Every other header of the CUDA toolkit, and of what is built on it.
TOOLKIT = re.compile(r"cuda\w*\.h(pp)?|(cuda|cccl|crt|cub|thrust|cooperative_groups|cute|cutlass|nv)/.*|mma\.h|nvrtc\.h|"
                     r"nv(JitLink|PTXCompiler|ml|ToolsExt)\.h|(device|host|vector)_(types|functions)\.h|cooperative_groups\.h")

# What the names of the C++ standard library's headers look like, and no others'.
STANDARD = re.compile(r"[a-z_]+")

# What the public header of the C ABI needs of C's.
C_STANDARD = {"stddef.h", "stdint.h"}

SOURCES = {".h", ".hpp", ".cuh", ".c", ".cpp"}
ROOTS = ["", "runtime", "runtime/include", "kernel_templates", "tools", "tests", "tests/cpu"]
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$", re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*/\*.*?\*/", re.DOTALL | re.MULTILINE)
NAME = re.compile(r'"([^"]+)"|<([^>]+)>')


class Tree:
    """Files by path (relative to the root, with slashes), each with its text."""

    def __init__(self, texts):
        self.texts = texts

    @classmethod
    def at(cls, root):
        root = pathlib.Path(root)
        folders = {part.split("/")[0] for part in PARTS}
        files = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
        return cls({path.relative_to(root).as_posix(): path.read_text(encoding="utf-8", errors="replace")
                    for path in files if path.suffix in SOURCES | {".in"}})

    def sources(self):
        return sorted(file for file in self.texts if pathlib.PurePosixPath(file).suffix in SOURCES)

    def find(self, includer, name):
        """The file of ours that `#include "name"` in `includer` takes, or None."""
        beside = pathlib.PurePosixPath(includer).parent
        for folder in [beside, *map(pathlib.PurePosixPath, ROOTS)]:
            file = (folder / name).as_posix()
            if file in self.texts or file + ".in" in self.texts:  # CMake writes x.hpp from x.hpp.in
                return file
        return None


def part_of(file):
    """The part that a file belongs to, or None for one that lies outside all of them."""
    folders = [folder for folder in PARTS if file.startswith(folder + "/")]
    return PARTS[max(folders, key=len)] if folders else None


def violations(tree):
    """One line for each #include that breaks a rule."""
    found = []
    for file in tree.sources():
        text = COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), tree.texts[file])
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            problem = violation(tree, file, match.group(1))
            if problem:
                found.append(f"{file}:{line}: {problem}")
    return found


def violation(tree, file, operand):
    part = part_of(file)
    if part is None:
        return "lies in no part of the design; see PARTS in tests/cpu/architecture/include_edges.py"
    match = NAME.match(operand)
    if not match:
        return f"includes through a macro ({operand}), so its dependencies cannot be read"
    name = match.group(1) or match.group(2)
    if ".." in pathlib.PurePosixPath(name).parts:
        return f"includes {name}: name the file from a root, without .."
    if name in OWNERS:
        allowed = part in (OWNERS[name], "tests")
        return None if allowed else f"{part} includes {name}, which is {OWNERS[name]}'s alone"
    target = tree.find(file, name)
    if target is not None:
        return edge_violation(part, target) or single_violation(part, file, target)
    if match.group(1):
        return f"includes {name}, which is no file of this tree"
    return external_violation(part, name, file)


def edge_violation(part, target):
    if target.endswith((".c", ".cpp")):
        return f"includes a source file, {target}"
    other = part_of(target)
    if other != part and other not in MAY_INCLUDE[part]:
        return f"{part} includes {other} ({target})"
    return None


def single_of(file):
    """(the folder of SINGLES, the folder in it) that a file is in; None for what all of them share, and for the registry."""
    for folder in SINGLES:
        inner = file[len(folder):].split("/") if file.startswith(folder) else []
        if len(inner) > 1 and not REGISTRY.startswith(f"{inner[0]}/"):
            return folder, inner[0]
    return None


def single_violation(part, file, target):
    single = single_of(target)
    if single is None or single_of(file) == single or file == single[0] + REGISTRY or part == "tests":
        return None
    return f"includes {target}, which is the {SINGLES[single[0]]} {single[1]}'s own"


def folder_of(file):
    return pathlib.PurePosixPath(file).parent.as_posix()


def unit_of(file):
    """A header and the source file of the same name: what a reader takes as one."""
    return pathlib.PurePosixPath(file).with_suffix("").as_posix()


def edges_between(tree, group_of):
    """{(group, group that it includes): the includes that make it so}, of all parts but tests."""
    edges = {}
    for file in tree.sources():
        if part_of(file) in (None, "tests"):
            continue
        for match in INCLUDE.finditer(COMMENT.sub("", tree.texts[file])):
            name = NAME.match(match.group(1))
            target = name and tree.find(file, name.group(1) or name.group(2))
            if target is not None and group_of(target) != group_of(file):
                edges.setdefault((group_of(file), group_of(target)), []).append(f"{file} includes {target}")
    return edges


def reachable(edges):
    """{node: every node that a path of edges leads to from it}."""
    following = {}
    for node, other in edges:
        following.setdefault(node, set()).add(other)
    reached = {}
    for node in following:
        reached[node], waiting = set(), [node]
        while waiting:
            found = following.get(waiting.pop(), set()) - reached[node]
            reached[node] |= found
            waiting.extend(found)
    return reached


def cycles(edges):
    """One line for each edge that is part of a cycle, with what makes it so."""
    reached = reachable(edges)
    return sorted(f"{a} -> {b}: {why}" for (a, b), reasons in edges.items() if a in reached.get(b, ()) for why in reasons)


def folder_cycles(tree):
    """The includes between folders that are part of a cycle."""
    return cycles(edges_between(tree, folder_of))


def unit_cycles(tree):
    """The includes between units (a header and its source file) that are part of a cycle."""
    return cycles(edges_between(tree, unit_of))


def external_violation(part, name, file):
    if part == "abi" and name == "cstdint":  # its integers, for the host alone: NVRTC has no such header
        return None
    if part in ("templates", "abi"):
        return f"{part} includes <{name}>: device code and what it shares with the host include our files alone"
    if part == "tests":
        return None
    if TOOLKIT.fullmatch(name):
        return f"{part} includes {name} of the CUDA toolkit"
    if part == "public" and file.endswith(".h") and name in C_STANDARD:
        return None
    if part == "public" and not STANDARD.fullmatch(name):
        return f"a public header includes <{name}>, which is not the standard library's"
    return None
