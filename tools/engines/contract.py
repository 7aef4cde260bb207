#!/usr/bin/env python3
"""The contract between vLLM and an attention backend, as a table of facts about one release.

    contract.py SOURCE [--release V] [--output FILE]
    contract.py --compare A.json B.json

SOURCE is a wheel, a folder that holds the package vllm, or that package. It is parsed and never imported. Without --release the
version is that of vllm/_version.py. The table goes to standard output or FILE. --compare prints what B added, removed and
changed against A, one line each.

Example:

    python3 -m pip download --no-deps vllm==0.33.0
    tools/engines/contract.py vllm-0.33.0-*.whl --output tools/engines/vllm/0.33.0.json
    tools/engines/contract.py --compare tools/engines/vllm/0.30.0.json tools/engines/vllm/0.33.0.json

The exit code is 2 if a source or a table is not as expected; one line on standard error names the file.
tools/engines/README.md describes the table.
"""

import argparse
import ast
import json
import os
import pathlib
import signal
import sys

import contract_facts
from contract_compare import compare
from contract_reads import BACKENDS, ROLES, engine_reads
from contract_sources import PACKAGE, ContractError, definitions, imported_module, module_of, open_sources, resolve

SCHEMA = "attnsmith.engine-contract/1"
SECTIONS = {"schema", "engine", "release", "classes", "functions", "literals", "variables", "plugins", "layers", "backends",
            "reads"}
ENGINE = "vllm"
VERSION = "vllm/_version.py"
BACKEND = "vllm/v1/attention/backend.py"
REGISTRY = "vllm/v1/attention/backends/registry.py"
UTILS = "vllm/v1/attention/backends/utils.py"
SPECS = "vllm/v1/kv_cache_interface.py"
LAYERS = "vllm/model_executor/layers/attention/"
MLA = LAYERS + "mla_attention.py"
PLUGINS = "vllm/plugins/__init__.py"
CACHE = "vllm/config/cache.py"
PARALLEL = "vllm/distributed/parallel_state.py"
OPS = "vllm/v1/attention/ops/"
CUSTOM_OPS = "vllm/_custom_ops.py"
MLA_PREFILL = BACKENDS + "mla/prefill/"

# Classes by the file where they are looked for first. A release without one of them is an error.
CLASSES = {
    BACKEND: ("AttentionBackend", "AttentionCGSupport", "AttentionImpl", "AttentionImplBase", "AttentionLayer",
              "AttentionMetadata", "AttentionMetadataBuilder", "AttentionType", "CommonAttentionMetadata", "MLAAttentionImpl",
              "MultipleOf"),
    REGISTRY: ("AttentionBackendEnum",),
    MLA: ("MLACommonBackend", "MLACommonDecodeMetadata", "MLACommonImpl", "MLACommonMetadata", "MLACommonMetadataBuilder",
          "MLACommonPrefillMetadata", "QueryLenSupport"),
    SPECS: ("AttentionSpec", "KVCacheSpec", "KVQuantMode"),
    "vllm/platforms/interface.py": ("DeviceCapability",),
}
# Classes that some releases have.
OPTIONAL_CLASSES = {"vllm/v1/kv_cache_layout.py": ("KVCacheLayout",), CACHE: ("KVCacheDTypeHandler",),
                    MLA_PREFILL + "base.py": ("MLAPrefillBackend",), MLA_PREFILL + "registry.py": ("MLAPrefillBackendEnum",)}
# Every class of SPECS that derives from it is part of the contract.
FAMILY = "AttentionSpec"
REGISTER = "register_backend"
# Functions that a backend calls, with the files where they are looked for first. Some releases lack some of them. The functions
# that the backends of FUNCTIONS_OF import are in the table, too.
FUNCTIONS = {
    "concat_and_cache_mla": (CUSTOM_OPS,),
    "cp_lse_ag_out_rs": (OPS + "dcp.py", OPS + "common.py"),
    "create_kv_cache_views": (SPECS,),
    "dcp_a2a_lse_reduce": (OPS + "dcp.py", OPS + "dcp_alltoall.py"),
    "direct_register_custom_op": ("vllm/utils/torch_utils.py",),
    "get_current_vllm_config": ("vllm/config/vllm.py",),
    "get_current_vllm_config_or_none": ("vllm/config/vllm.py",),
    "get_dcp_group": (PARALLEL,),
    "get_dcp_local_seq_lens": (UTILS,),
    "get_dcp_world_size_and_rank": (PARALLEL,),
    "get_forward_context": ("vllm/forward_context.py",),
    "get_kv_cache_dtype_handler": (CACHE,),
    "get_kv_cache_layout": (UTILS,),
    "get_kv_quant_mode": (SPECS,),
    "get_layers_from_vllm_config": ("vllm/config/vllm.py",),
    "get_pcp_group": (PARALLEL,),
    "get_supported_kv_cache_layouts": (UTILS,),
    "init_logger": ("vllm/logger.py",),
    "is_quantized_kv_cache": (SPECS, "vllm/utils/torch_utils.py"),
    "kv_cache_dtype_str_to_dtype": ("vllm/utils/torch_utils.py",),
    "kv_cache_uses_per_token_head_scales": (SPECS,),
    "load_general_plugins": (PLUGINS,),
    "max_decode_query_len": (BACKEND,),
    "merge_attn_states": (OPS + "merge_attn_states.py",),
    "record_kv_cache_layout": (UTILS,),
    "register_kv_cache_dtype": (CACHE,),
    "register_mla_prefill_backend": (MLA_PREFILL + "registry.py",),
    "reshape_and_cache_flash": (CUSTOM_OPS,),
    "resolve_kv_cache_layout": (UTILS,),
    "set_kv_cache_layout": (UTILS,),
    "split_decodes_and_prefills": (UTILS,),
    "subclass_attention_backend": (BACKEND,),
    "subclass_attention_backend_with_overrides": (BACKEND,),
}
# Types NAME = Literal[...]. The first must exist.
LITERALS = {"CacheDType": (CACHE,), "KVCacheLayoutType": (UTILS,)}
# Variables, with the file where each is looked for first. Some releases may lack them.
VARIABLES = {"VLLM_BATCH_INVARIANT": "vllm/envs.py"}
LAYER_CLASSES = {"Attention": LAYERS + "attention.py", "CrossAttention": LAYERS + "cross_attention.py",
                 "EncoderOnlyAttention": LAYERS + "encoder_only_attention.py", "MLAAttention": MLA}
BUILT_IN = {"FlashAttentionBackend": BACKENDS + "flash_attn.py", "FlashAttnMLABackend": BACKENDS + "mla/flashattn_mla.py",
            "TritonAttentionBackend": BACKENDS + "triton_attn.py"}
FUNCTIONS_OF = ("FlashAttentionBackend", "FlashAttnMLABackend")
# The classes of each role. A backend overrides their names, and the engine reads them.
CONTRACT_OF = {
    "backend": ("AttentionBackend", "MLACommonBackend"),
    "impl": ("AttentionImplBase", "AttentionImpl", "MLAAttentionImpl", "MLACommonImpl"),
    "builder": ("AttentionMetadataBuilder", "MLACommonMetadataBuilder"),
}
_GETTER = {"impl": "get_impl_cls", "builder": "get_builder_cls"}
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


# ---- classes, functions, literals and variables ----


def required(found, word, name, file):
    """`found`, which Sources.find() gave. Raises ContractError if that is None."""
    if found is None:
        raise ContractError("%s: expected %s %s; no file of the package defines it" % (file, word, name))
    return found


def found_class(sources, name, file):
    return required(sources.find(name, ast.ClassDef, "class", (file,)), "class", name, file)


def base_definitions(sources, node, file):
    """(file, node) of each base of a class that the package defines."""
    for name in contract_facts.base_names(node):
        found = resolve(sources, module_of(file), name)
        if found and isinstance(found[1], ast.ClassDef):
            yield found


def is_of_family(sources, node, file):
    return node.name == FAMILY or any(is_of_family(sources, *found[::-1]) for found in base_definitions(sources, node, file))


def contract_classes(sources):
    """{name: (file, node)} of the classes of the contract, their bases, and the classes within them."""
    found = {name: found_class(sources, name, file) for file, names in CLASSES.items() for name in names}
    for file, names in OPTIONAL_CLASSES.items():
        optional = {name: sources.find(name, ast.ClassDef, "class", (file,)) for name in names}
        found.update({name: one for name, one in optional.items() if one})
    specs = found[FAMILY][0]
    family = {node.name: (specs, node) for node in sources.tree(specs).body
              if isinstance(node, ast.ClassDef) and is_of_family(sources, node, specs)}
    found.update({name: one for name, one in family.items() if name not in found})
    waiting = list(found.values())
    while waiting:
        file, node = waiting.pop()
        for other in base_definitions(sources, node, file):
            if other[1].name not in found:
                found[other[1].name] = other
                waiting.append(other)
    for file, node in list(found.values()):
        found.update({name: (file, inner) for name, inner in contract_facts.nested_classes(node)})
    return found


def imports_of(sources, file):
    """{full name: "class", "function", "module" or "value"} of what a file imports from the package."""
    found = {}
    for node in ast.walk(sources.tree(file)):
        module = imported_module(node, file) if isinstance(node, ast.ImportFrom) else None
        if module and module.split(".")[0] == PACKAGE:
            for alias in node.names:
                full, target = "%s.%s" % (module, alias.name), resolve(sources, module, alias.name)
                kind = {ast.ClassDef: "class", ast.FunctionDef: "function"}.get(target and type(target[1]), "value")
                found[full] = "module" if target is None and sources.file_of(full) else kind
    return found


def contract_functions(sources):
    """Facts about register_backend, FUNCTIONS, and what FUNCTIONS_OF import from outside the folder of backends."""
    found = {REGISTER: required(sources.find(REGISTER, _FUNCTION, "def", (REGISTRY,)), "function", REGISTER, REGISTRY)}
    for name, files in FUNCTIONS.items():
        found[name] = sources.find(name, _FUNCTION, "def", files)
    for backend in FUNCTIONS_OF:
        for full, kind in imports_of(sources, found_class(sources, backend, BUILT_IN[backend])[0]).items():
            module, _, name = full.rpartition(".")
            if kind == "function" and name not in FUNCTIONS and not is_own(module):
                found[name] = resolve(sources, module, name)
    return {name: contract_facts.function_facts(one[1], one[0]) for name, one in found.items() if one}


def is_own(module):
    """Whether a module is in the folder of backends or in FlashAttention's own code."""
    return module.startswith((module_of(BACKENDS + "__init__.py"), PACKAGE + ".vllm_flash_attn"))


def contract_literals(sources):
    """{name: {"module": name, "values": strings}} of LITERALS."""
    found = {}
    for name, files in LITERALS.items():
        definition = sources.find(name, (ast.Assign, ast.AnnAssign), "", files)
        values = literal_values(definition[1].value) if definition else None
        if values is None and not found:
            raise ContractError("%s: expected %s = Literal[...] of strings" % (files[0], name))
        if values is not None:
            found[name] = {"module": module_of(definition[0]), "values": values}
    return found


def literal_values(node):
    """The strings of Literal[...], or None."""
    if not isinstance(node, ast.Subscript) or contract_facts.last_name(node.value) != "Literal":
        return None
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [item.value for item in items] if all(isinstance(item, ast.Constant) for item in items) else None


def contract_variables(sources):
    """{name: {"module": name, "value": text}} of VARIABLES, with the first value that a module's own lines, or those for type
    checkers, assign."""
    found = {}
    for name, file in VARIABLES.items():
        definition = sources.find(name, (ast.Assign, ast.AnnAssign), "", (file,))
        if definition and definition[1].value is not None:
            found[name] = {"module": module_of(definition[0]), "value": ast.unparse(definition[1].value)}
    return found


def plugin_groups(sources):
    """{constant: name} of the entry points' groups."""
    found = definitions(sources.tree(PLUGINS)) if PLUGINS in sources else {}
    groups = {name: node.value.value for name, node in found.items()
              if name.endswith("_GROUP") and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)}
    if not groups:
        raise ContractError("%s: expected constants NAME_GROUP, the groups of entry points" % PLUGINS)
    return groups


def layer_facts(sources):
    """The module of each layer that has a backend's `impl`, and the names that its instances have."""
    facts = {}
    for name, file in LAYER_CLASSES.items():
        found_file, node = found_class(sources, name, file)
        whole = contract_facts.class_facts(node, found_file)
        facts[name] = {"module": whole["module"], "instance": sorted(contract_facts.names_of(whole) - {"__init__"})}
    return facts


# ---- the built-in backends ----


def role_classes(sources, name):
    """{role: (file, node)} of a built-in backend, its implementation and its builder."""
    file, node = found_class(sources, name, BUILT_IN[name])
    found = {"backend": (file, node)}
    for role, getter in _GETTER.items():
        method = next((one for one in node.body if isinstance(one, _FUNCTION) and one.name == getter), None)
        given = contract_facts.body_facts(method).get("returns") if method else None
        target = resolve(sources, module_of(file), given) if given else None
        if target is None or not isinstance(target[1], ast.ClassDef):
            raise ContractError("%s: expected %s.%s to return a class by name" % (file, name, getter))
        found[role] = target
    return found


def inherited_names(classes, bases):
    """The names of the classes of the contract that a class with these bases derives from."""
    known = [classes[base] for base in bases if base in classes]
    return set().union(*(contract_facts.names_of(facts) | inherited_names(classes, facts["bases"]) for facts in known))


def backend_facts(sources, roles, classes, reads):
    """Which names of its bases a built-in backend overrides, and which methods it adds and the engine reads."""
    facts = {"module": module_of(roles["backend"][0]), "imports": imports_of(sources, roles["backend"][0])}
    for role, (file, node) in roles.items():
        own = contract_facts.class_facts(node, file)
        inherited = inherited_names(classes, own["bases"])
        adds = {name: method for name, method in own.get("methods", {}).items()
                if name not in inherited and name in reads[role]}
        overrides = {*own.get("attributes", ()), *own.get("methods", ())} & inherited
        facts[role] = {"class": node.name, "overrides": sorted(overrides), "adds": adds}
    return facts


def backends_and_reads(sources, classes):
    """The sections "backends" and "reads"."""
    roles = {name: role_classes(sources, name) for name in BUILT_IN}
    names = {role: set().union(*(contract_facts.names_of(classes[name]) for name in CONTRACT_OF[role])) for role in ROLES}
    for found in roles.values():
        for role, (file, node) in found.items():
            names[role] |= contract_facts.names_of(contract_facts.class_facts(node, file))
    reads = engine_reads(sources, names)
    return {name: backend_facts(sources, found, classes, reads) for name, found in roles.items()}, reads


# ---- the table ----


def release_of(sources):
    """The version that the package says it has."""
    node = definitions(sources.tree(VERSION)).get("__version__") if VERSION in sources else None
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        return node.value.value
    raise ContractError("%s: expected __version__ = '...'; give --release" % VERSION)


def table_of(source, release=None):
    """The table of a folder or wheel. Raises ContractError."""
    sources = open_sources(source)
    release = release or release_of(sources)
    classes = {name: contract_facts.class_facts(node, file) for name, (file, node) in contract_classes(sources).items()}
    backends, reads = backends_and_reads(sources, classes)
    return {"schema": SCHEMA, "engine": ENGINE, "release": release, "classes": classes,
            "functions": contract_functions(sources), "literals": contract_literals(sources),
            "variables": contract_variables(sources), "plugins": plugin_groups(sources), "layers": layer_facts(sources),
            "backends": backends, "reads": reads}


def text_of(table):
    """The form in which tables are kept."""
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


def load(file):
    """The table that a file holds. Raises ContractError for any other file."""
    try:
        table = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContractError("%s: expected a table: %s" % (file, error)) from error
    schema = table.get("schema") if isinstance(table, dict) else None
    if schema != SCHEMA:
        raise ContractError("%s: expected schema %s, not %r" % (file, SCHEMA, schema))
    if SECTIONS - set(table):
        raise ContractError("%s: expected the sections %s" % (file, ", ".join(sorted(SECTIONS - set(table)))))
    return table


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", nargs="?", metavar="SOURCE", help="a wheel, or a folder with the package")
    made.add_argument("--release", metavar="V", help="the version that the table names")
    made.add_argument("--output", metavar="FILE", help="write the table there")
    made.add_argument("--compare", nargs=2, metavar=("A.json", "B.json"), help="list the differences of two tables")
    return made


def run(options):
    if options.compare:
        sys.stdout.writelines(line + "\n" for line in compare(*map(load, options.compare)))
        return
    text = text_of(table_of(options.source, options.release))
    if options.output is None:
        sys.stdout.write(text)
        return
    try:
        pathlib.Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ContractError("%s: cannot be written: %s" % (options.output, error)) from error


def main(argv=None):
    made = parser()
    options = made.parse_args(argv)
    if bool(options.source) == bool(options.compare):
        made.error("give either SOURCE or --compare")
    if options.compare and (options.release or options.output):
        made.error("--release and --output go with SOURCE")
    try:
        run(options)
        sys.stdout.flush()
    except ContractError as error:
        print("contract.py: error: %s" % error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # a reader such as head that stops early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
