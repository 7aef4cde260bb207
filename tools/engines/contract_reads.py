"""How the engine uses a backend: the attributes of a backend, its implementation and its builder that are read outside the
folder of backends or in its SHARED files. The name of a variable tells its role, so a few reads are missed, and a few are of
other objects."""

import ast
import re

from contract_facts import dotted, last_name
from contract_sources import FOREIGN, PACKAGE

BACKENDS = PACKAGE + "/v1/attention/backends/"
SHARED = (BACKENDS + "registry.py", BACKENDS + "utils.py")
# By role, the last names of expressions.
ROLES = {
    "backend": {"attn_backend", "_attn_backend", "attn_backend_cls", "backend", "backend_cls", "backend_class",
                "get_attn_backend"},
    "impl": {"impl", "attn_impl", "impl_cls", "get_impl_cls"},
    "builder": {"builder", "attn_metadata_builder", "metadata_builder", "attn_builder", "builder_cls", "get_builder_cls",
                "get_metadata_builder"},
}
_ROLE_OF = {name: role for role, names in ROLES.items() for name in names}
_MENTION = re.compile(r"\b(?:%s)\b" % "|".join(sorted(_ROLE_OF)))
_ACCESS = {"getattr": "getattr", "hasattr": "hasattr", "setattr": "set"}


def role_of(node, aliases):
    """The role of an expression by its last name, or None. aliases: {variable: role}."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    name = last_name(node) or getattr(node, "attr", "")
    return _ROLE_OF.get(name) or (aliases.get(name) if isinstance(node, ast.Name) else None)


def aliases_of(function):
    """{variable: role} of what a function assigns from an expression of a role: `first = self.attn_backend`."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            role = role_of(node.value, found)
            if role and not isinstance(node.value, ast.Subscript):
                found[node.targets[0].id] = role
    return found


def call_text(call):
    """"call(3, output=)": the number of positional arguments and the names of the others."""
    positional = sum(not isinstance(argument, ast.Starred) for argument in call.args)
    words = [str(positional)] + ["*"] * (positional != len(call.args))
    return "call(%s)" % ", ".join(words + ["%s=" % word.arg if word.arg else "**" for word in call.keywords])


def accesses(tree):
    """(role, attribute, how) of each: how is "call(...)", "read", "set", "getattr" or "hasattr"."""
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    seen = set()
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for scope in [*functions, tree]:  # a function is walked before the module, whose scope has no aliases
        aliases = aliases_of(scope) if scope is not tree else {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and (id(node), "attribute") not in seen:
                role = role_of(node.value, aliases)
                if role:
                    seen.add((id(node), "attribute"))
                    how = call_text(called[id(node)]) if id(node) in called else (
                        "set" if isinstance(node.ctx, ast.Store) else "read")
                    yield role, node.attr, how
            elif isinstance(node, ast.Call) and (id(node), "call") not in seen:
                how = _ACCESS.get(dotted(node.func) or "")
                if how and len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and role_of(node.args[0], aliases):
                    seen.add((id(node), "call"))
                    yield role_of(node.args[0], aliases), node.args[1].value, how


def engine_reads(sources, names):
    """{role: {attribute: {file: [how]}}} of the attributes that `names`, {role: names}, has."""
    found = {role: {} for role in ROLES}
    for file in sources.files:
        is_backend = file.startswith(BACKENDS) and file not in SHARED
        if is_backend or file.startswith(FOREIGN) or not _MENTION.search(sources.text(file)):
            continue
        for role, attribute, how in accesses(sources.tree(file)):
            if attribute in names[role]:
                found[role].setdefault(attribute, {}).setdefault(file, set()).add(how)
    return {role: {attribute: {file: sorted(how) for file, how in files.items()} for attribute, files in attributes.items()}
            for role, attributes in found.items()}
