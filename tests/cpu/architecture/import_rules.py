"""Which part of the Python package may import which: the rules, and a checker over its imports.

A part is a folder, modules or both. A public module is next to the folder of its part, since users import it by that path. Parts
import each other in one direction; tools/python/README.md shows the same table. The checker returns one line of text a
violation.
"""

import pathlib

from import_cycles import import_edges, module_of

# The part of each module and folder of the package.
PARTS = {
    "errors": "base",
    "words": "base",
    "results": "base",
    "_base": "base",
    "_c_api": "C API",
    "buffers": "tensors",
    "_tensors": "tensors",
    "kernels": "runtime",
    "runtime": "runtime",
    "_calls": "calls",
    "_operators": "operators",
    "functions": "functions",
    "__init__": "package",
    "jax": "JAX",
    "_jax": "JAX",
    "torch": "adapters",
    "transformers": "adapters",
    "_adapters": "adapters",
    "compat": "compat",
    "vllm": "vLLM",
    "tvm_ffi": "tvm-ffi",
    "__main__": "command",
}

# What a part may import in addition to itself.
MAY_IMPORT = {
    "base": set(),
    "C API": {"base"},
    "tensors": {"C API", "base"},
    "runtime": {"tensors", "C API", "base"},
    "calls": {"runtime", "tensors", "C API", "base"},
    "operators": {"calls", "tensors", "C API", "base"},
    "functions": {"operators", "calls", "runtime", "tensors", "C API", "base"},
    "package": {"functions", "runtime", "tensors", "C API", "base"},
    "JAX": {"functions", "calls", "runtime", "tensors", "C API", "base"},
    "adapters": {"functions", "operators", "calls", "tensors", "base"},
    "compat": {"adapters", "functions", "operators", "base"},
    "vLLM": {"functions", "calls", "runtime", "base"},
    "tvm-ffi": {"C API", "base"},
    "command": {"C API"},
}


def member_of(module):
    """The module or folder of the package that a module is, or is in."""
    inner = module.split(".")[1:]
    return inner[0] if inner else "__init__"


def part_of(module):
    """The part that a module belongs to, or None."""
    return PARTS.get(member_of(module))


def edges_between_parts(texts):
    """{(part, part that it imports): the imports that make it so}. Modules of no part are left out."""
    edges = {}
    for (module, other), lines in import_edges(texts).items():
        ends = part_of(module), part_of(other)
        if None not in ends and ends[0] != ends[1]:
            edges.setdefault(ends, []).extend(f"{line}: {ends[0]} imports {ends[1]} ({other})" for line in lines)
    return edges


def violations(texts):
    """One line for each module without a part, and for each import that breaks a rule."""
    found = [f"{file}: is in no part of the package; see PARTS in tests/cpu/architecture/import_rules.py"
             for file in texts if part_of(module_of(file)) is None]
    for (part, other), imports in edges_between_parts(texts).items():
        if other not in MAY_IMPORT[part]:
            found.extend(imports)
    return sorted(found)


def is_private_folder(file):
    """True for the __init__.py of a private folder."""
    path = pathlib.PurePosixPath(file)
    return path.name == "__init__.py" and path.parent.name.startswith("_")
