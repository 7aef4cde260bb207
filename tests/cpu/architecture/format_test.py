"""Every C++ and CUDA source of the repository is formatted as .clang-format says. Exits 77 where this cannot be told."""

import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
FORMATTER = 14  # other versions break some lines differently
SOURCES = {".c", ".h", ".hpp", ".cpp", ".cuh"}
SKIPPED = 77


def formatter():
    for name in (f"clang-format-{FORMATTER}", "clang-format"):
        command = shutil.which(name)
        if command:
            version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(rf"version {FORMATTER}\.", version):
                return command
    return None


def sources():
    """The files that git tracks or would track; all of them where this is no git repository."""
    command = ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        files = [REPOSITORY / name for name in listed]
    except (OSError, subprocess.CalledProcessError):
        folders = ("cache", "examples", "kernel_templates", "runtime", "tests", "tools")
        files = [file for folder in folders for file in (REPOSITORY / folder).rglob("*")]
    return sorted(file for file in files if file.suffix in SOURCES and file.is_file())


def main():
    command = formatter()
    if command is None:
        print(f"skipped: clang-format {FORMATTER} is not installed")
        return SKIPPED
    files = sources()
    if len(files) < 50:
        print(f"only {len(files)} sources were found below {REPOSITORY}")
        return 1
    status = subprocess.run([command, "--dry-run", "--Werror", "--ferror-limit=3", *map(str, files)], check=False)
    if status.returncode != 0:
        print(f"to repair: {command} -i FILE...")
        return 1
    print(f"{len(files)} files are formatted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
