"""Import cycles between the modules of a Python package: the imports at the top of a file, within functions and for type checkers
alone, and importlib.import_module() of a literal name. That a module's package is imported before it counts for nothing."""

import ast
import pathlib

from include_edges import cycles


def texts_at(folder):
    """{path from the folder that holds the package: text} of every file of a package."""
    folder = pathlib.Path(folder)
    return {path.relative_to(folder.parent).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}


def module_of(file):
    parts = pathlib.PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(file):
    """What relative imports of a file begin at."""
    return ".".join(pathlib.PurePosixPath(file).parent.parts)


def absolute(name, level, package):
    """The full name of an import with `level` dots before it."""
    if level == 0:
        return name
    base = package.split(".")[:len(package.split(".")) - level + 1]
    return ".".join([*base, *([name] if name else [])])


def names_imported(file, node):
    """What an import statement or call may import, longest name first where only the tree says whether it is a module."""
    package = package_of(file)
    if isinstance(node, ast.Import):
        return [[alias.name] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node.module or "", node.level, package)
        return [[f"{base}.{alias.name}", base] for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = node.args[0].value
        if name == "import_module" and isinstance(given, str):
            return [[absolute(given.lstrip("."), len(given) - len(given.lstrip(".")), package)]]
    return []


def import_edges(texts):
    """{(module, module that it imports): the lines that do}."""
    modules = {module_of(file) for file in texts}
    edges = {}
    for file in sorted(texts):
        module = module_of(file)
        for node in ast.walk(ast.parse(texts[file])):
            for candidates in names_imported(file, node):
                target = next((name for name in candidates if name in modules), None)
                if target is not None and target != module:
                    lines = edges.setdefault((module, target), [])
                    if f"{file}:{node.lineno}" not in lines:
                        lines.append(f"{file}:{node.lineno}")
    return edges


def import_cycles(texts):
    """One line for each import that is part of a cycle."""
    return cycles(import_edges(texts))
