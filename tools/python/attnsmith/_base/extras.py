"""Packages that a part of attnsmith needs and attnsmith itself does not: the one rule for where they are missing."""

from __future__ import annotations


def missing(part: str, package: str, install: str, error: ImportError) -> ImportError:
    """To be raised from `error`: which package the part needs, and how it is installed."""
    return ImportError(f"{part} needs {package}: pip install {install} ({error})", name=error.name)
