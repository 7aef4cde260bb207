"""The build backend of pyproject.toml: scikit-build-core's, with the headers cuda.h and nvrtc.h.

Where the machine has no CUDA toolkit, pip puts NVIDIA's wheels with the headers into the environment of the build, and
CMake is told where they are. The versions are those of tools/setup.
"""

import os
import pathlib
import re
import sys

from scikit_build_core import build as _inner
from scikit_build_core.build import (build_sdist, get_requires_for_build_sdist, prepare_metadata_for_build_editable,
                                     prepare_metadata_for_build_wheel)

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable",
           "get_requires_for_build_sdist", "get_requires_for_build_wheel", "prepare_metadata_for_build_editable",
           "prepare_metadata_for_build_wheel"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HEADERS = {"cuda.h": "ATTNSMITH_CUDA_INCLUDE", "nvrtc.h": "ATTNSMITH_NVRTC_INCLUDE"}


def _needs_wheels():
    """Whether CMake would find no headers (tools/cmake/Dependencies.cmake), and has not been told of any."""
    told = os.environ.get("CMAKE_ARGS", "") + os.environ.get("SKBUILD_CMAKE_ARGS", "")
    if all(variable in told for variable in _HEADERS.values()):
        return False
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), _ROOT / "build/cuda", "/usr/local/cuda",
               "/opt/cuda", "/usr/local", "/usr"]
    return not any(all((pathlib.Path(folder) / "include" / name).is_file() for name in _HEADERS)
                   for folder in folders if folder)


def _wheels():
    if not _needs_wheels():
        return []
    text = (_ROOT / "tools/setup/cuda-wheels.txt").read_text(encoding="utf-8")
    return re.findall(r"^[\w-]+==[\w.]+", text, re.MULTILINE)


def _settings(given):
    """With the folders of the headers, where wheels brought them."""
    settings = dict(given or {})
    if _needs_wheels():
        for name, variable in _HEADERS.items():
            found = [file for folder in sys.path if folder
                     for file in pathlib.Path(folder).glob(f"nvidia/*/include/{name}")]
            if found:
                settings.setdefault(f"cmake.define.{variable}", str(found[0].parent))
    return settings


def get_requires_for_build_wheel(config_settings=None):
    return [*_inner.get_requires_for_build_wheel(config_settings), *_wheels()]


def get_requires_for_build_editable(config_settings=None):
    return [*_inner.get_requires_for_build_editable(config_settings), *_wheels()]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _inner.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _inner.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
