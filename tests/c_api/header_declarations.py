"""What attnsmith.h declares, as text: constants, structs, types of functions and functions."""

import pathlib
import re

HEADER = pathlib.Path(__file__).resolve().parents[2] / "runtime/include/attnsmith/attnsmith.h"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.DOTALL)
_FUNCTION = re.compile(r"ATTNSMITH_API\s+([\w\s*]+?)\b(attnsmith_\w+)\(([^)]*)\)\s*ATTNSMITH_NOEXCEPT;")
_CALLBACK = re.compile(r"typedef\s+([\w\s*]+?)\(\*(attnsmith_\w+)\)\(([^)]*)\);")
_ENUM = re.compile(r"\benum \{(.*?)\}", re.DOTALL)


def text():
    """The header without its comments."""
    return _COMMENT.sub("", HEADER.read_text(encoding="utf-8"))


def structs():
    """Name -> the names of its fields, in their order."""
    return {name: re.findall(r"(\w+)\s*;", body) for name, body in _STRUCT.findall(text())}


def constants():
    """The names of enumerators and of macros with a value."""
    found = [name for body in _ENUM.findall(text()) for name in re.findall(r"\b(ATTNSMITH_\w+)\s*=", body)]
    return found + re.findall(r"^#define (ATTNSMITH_\w+)[ \t]+\S", text(), re.MULTILINE)


def _types(parameters):
    types = []
    for parameter in " ".join(parameters.split()).split(", "):
        named = re.fullmatch(r"(.*[\s*])\w+", parameter)
        types.append(named[1].strip() if named else parameter)
    return ", ".join(types)


def _signatures(pattern):
    return {name: f"{' '.join(result.split())}({_types(parameters)})" for result, name, parameters in pattern.findall(text())}


def functions():
    """Name -> its result and the types of its parameters."""
    return _signatures(_FUNCTION)


def callbacks():
    """Name of a function's type -> its result and the types of its parameters."""
    return _signatures(_CALLBACK)
