"""The Python sources of an engine's package, from a folder or a wheel. Nothing of the package is imported."""

import ast
import pathlib
import re
import sys
import zipfile

PACKAGE = "vllm"
# Folders with the code of other projects. The contract is not defined there.
FOREIGN = tuple("%s/%s/" % (PACKAGE, folder) for folder in ("third_party", "vllm_flash_attn"))


class ContractError(Exception):
    """One line that names a file and what was expected of it."""


class Sources:
    """texts: {path from the folder that holds the package: a function that gives the file's bytes}."""

    def __init__(self, name, texts):
        self.name, self._texts, self._trees = name, texts, {}
        self.files = sorted(texts)

    def __contains__(self, file):
        return file in self._texts

    def text(self, file):
        """The text of a file. Raises ContractError if it is not UTF-8."""
        try:
            return self._texts[file]().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ContractError("%s: expected UTF-8: %s" % (file, error)) from error
        except (OSError, zipfile.BadZipFile) as error:
            raise ContractError("%s: cannot be read from %s: %s" % (file, self.name, error)) from error

    def tree(self, file):
        """Its syntax tree. Raises ContractError with the line of a syntax error."""
        if file not in self._trees:
            try:
                self._trees[file] = ast.parse(self.text(file))
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None)
                raise ContractError("%s%s: expected Python %d.%d: %s" % (
                    file, ":%d" % line if line else "", *sys.version_info[:2], getattr(error, "msg", error))) from error
        return self._trees[file]

    def file_of(self, module):
        """The file of a module by its full name, or None."""
        base = module.replace(".", "/")
        return next((file for file in (base + ".py", base + "/__init__.py") if file in self._texts), None)

    def find(self, name, kinds, word, expected):
        """(file, node) of the definition `name` at the top of a module: from the first of the files `expected` that has it, or
        from the first other file by path, with those below v1 first. None if no file defines it. word: "class", "def" or ""."""
        for file in expected:
            if file in self:
                node = definitions(self.tree(file)).get(name)
                if isinstance(node, kinds):
                    return file, node
        pattern = re.compile(r"^(?:async )?%s\b%s\b" % (word + " " if word else "", re.escape(name)), re.MULTILINE)
        others = [file for file in self.files if file not in expected and not file.startswith(FOREIGN)]
        for file in sorted(others, key=lambda file: (not file.startswith(PACKAGE + "/v1/"), file)):
            if pattern.search(self.text(file)):
                node = definitions(self.tree(file)).get(name)
                if isinstance(node, kinds):
                    return file, node
        return None


def module_of(file):
    parts = pathlib.PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(body):
    """Those of a module or class, and those within its if, try and with statements."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def definitions(tree):
    """{name: node} of a module's classes, functions, imports and assignments. The first one of a name counts."""
    found = {}
    for node in statements(tree.body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.setdefault(node.target.id, node)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, node)
    return found


def imported_module(node, file):
    """The full name of the module that an ImportFrom of a file imports from."""
    if not node.level:
        return node.module
    parts = pathlib.PurePosixPath(file).parent.parts
    parts = parts[:len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def resolve(sources, module, name, depth=6):
    """(file, node) of the definition that `from module import name` gives, through at most `depth` imports; else None."""
    file = sources.file_of(module)
    node = definitions(sources.tree(file)).get(name) if file else None
    if isinstance(node, ast.ImportFrom):
        original = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
        return resolve(sources, imported_module(node, file), original, depth - 1) if depth else None
    return (file, node) if node is not None else None


def open_sources(source):
    """The sources of a folder that holds the package or is the package, or of a wheel. Raises ContractError."""
    path = pathlib.Path(source)
    if path.is_dir():
        folder = next((one for one in (path / PACKAGE, path) if one.name == PACKAGE and (one / "__init__.py").is_file()), None)
        if folder is None and path.resolve().name == PACKAGE and (path / "__init__.py").is_file():
            folder = path.resolve()
        if folder is None:
            raise ContractError("%s: expected %s/__init__.py in this folder" % (path, PACKAGE))
        texts = {"%s/%s" % (PACKAGE, file.relative_to(folder).as_posix()): file.read_bytes for file in folder.rglob("*.py")}
        return Sources(str(path), texts)
    if not path.is_file():
        raise ContractError("%s: expected a folder or a wheel; there is no such file" % path)
    return open_wheel(path)


def open_wheel(path):
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ContractError("%s: expected a folder or a wheel: %s" % (path, error)) from error
    names = [name for name in archive.namelist() if name.startswith(PACKAGE + "/") and name.endswith(".py")]
    if PACKAGE + "/__init__.py" not in names:
        raise ContractError("%s: expected %s/__init__.py in this wheel" % (path, PACKAGE))
    return Sources(str(path), {name: (lambda name=name: archive.read(name)) for name in names})
