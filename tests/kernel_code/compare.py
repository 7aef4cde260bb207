#!/usr/bin/env python3
"""Compiles every kernel with two commits and lists those whose machine code differs. Needs NVRTC and no GPU.

    tests/kernel_code/compare.py main~3 main
    tests/kernel_code/compare.py HEAD            # with the working tree

Each commit is built in a folder of build/kernel-code, and what its kernels are is kept there, so that the next comparison
with it compiles one side alone. Exits 0 where all code is equal, 1 where any differs, 2 where something else failed.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build/kernel-code"
TARGET = "attnsmith-kernel-code"
# The first of each generation. The others of one get the same code but for its schedule.
USUAL_SMS = "80,90,100,120"


class Failed(Exception):
    pass


def run(*command, cwd=REPOSITORY, stdout=None):
    done = subprocess.run([str(part) for part in command], cwd=cwd, stdout=stdout or subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} exited with {done.returncode}: {(done.stderr or done.stdout or '').strip()[-2000:]}")
    return done.stdout


def commit_of(name):
    try:
        return run("git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except Failed:
        raise Failed(f"{name!r} is no commit of this repository") from None


def build(source, folder):
    """The program of the sources in one folder, built in the other."""
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
        "-DATTNSMITH_TESTS=ON")
    run("cmake", "--build", folder, "--target", TARGET, "--parallel", str(os.cpu_count() or 1))
    return folder / "tests/kernel_code" / TARGET


def compiled(program, sms, file):
    """The kernels' lines, in a file that is there as a whole or not at all."""
    unfinished = file.with_suffix(".unfinished")
    with open(unfinished, "w", encoding="utf-8") as output:
        run(program, "--sm", sms, stdout=output)
    unfinished.replace(file)


def lines_of_commit(name, sms):
    commit = commit_of(name)
    file = FOLDER / f"{commit}-{sms}.jsonl"
    if not file.exists():
        source = FOLDER / "source"
        remove_worktree(source)
        run("git", "worktree", "add", "--detach", source, commit)
        try:
            if not (source / "tests/kernel_code").is_dir():
                raise Failed(f"{name} has no tests/kernel_code: it is older than this comparison")
            compiled(build(source, FOLDER / "build"), sms, file)
        finally:
            remove_worktree(source)
    return file


def remove_worktree(source):
    if source.exists():
        subprocess.run(["git", "worktree", "remove", "--force", str(source)], cwd=REPOSITORY, capture_output=True, check=False)
        shutil.rmtree(source, ignore_errors=True)
    subprocess.run(["git", "worktree", "prune"], cwd=REPOSITORY, capture_output=True, check=False)


def lines_of_tree(sms):
    file = FOLDER / f"tree-{sms}.jsonl"
    compiled(build(REPOSITORY, FOLDER / "tree"), sms, file)
    return file


def read(file):
    """NVRTC's version, and {(kernel, target): its line}."""
    head, *lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kernels = {(line["kernel"], line["target"]): line for line in lines}
    if len(kernels) != len(lines):
        raise Failed(f"{file}: two kernels have one name")
    if len(lines) != head["kernels"]:
        raise Failed(f"{file}: {len(lines)} of {head['kernels']} kernels")
    return head["nvrtc"], kernels


def state(line):
    if "error" in line:
        return "does not compile: " + line["error"].strip().splitlines()[0][:200]
    spilled = f", spills {line['spilled_bytes']} bytes" if line.get("spilled_bytes") else ""
    return f"{line['bytes']} bytes, {line.get('registers', '?')} registers{spilled}"


def differences(old, new):
    """A line for each kernel that is not the same in both."""
    found = []
    for key in sorted(set(old) | set(new), key=lambda key: (key[1], key[0])):
        name = "%s, %s" % key
        if key not in new:
            found.append(f"gone     {name}")
        elif key not in old:
            found.append(f"new      {name}: {state(new[key])}")
        elif old[key].get("code") != new[key].get("code") or "error" in new[key]:
            found.append(f"changed  {name}: {state(old[key])} -> {state(new[key])}")
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="COMMIT")
    parser.add_argument("new", metavar="COMMIT", nargs="?", help="default: the working tree")
    parser.add_argument("--sm", default=USUAL_SMS, metavar="LIST", help=f"compute capabilities (default {USUAL_SMS})")
    options = parser.parse_args(argv)
    if not re.fullmatch(r"\d+(,\d+)*", options.sm):
        parser.error(f"--sm: {options.sm!r} is no list of numbers, such as {USUAL_SMS}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        files = [lines_of_commit(options.old, options.sm),
                 lines_of_tree(options.sm) if options.new is None else lines_of_commit(options.new, options.sm)]
        (old_nvrtc, old), (new_nvrtc, new) = [read(file) for file in files]
        if old_nvrtc != new_nvrtc:
            raise Failed(f"NVRTC is {old_nvrtc} for one and {new_nvrtc} for the other: remove {files[0].name} from {FOLDER}")
    except Failed as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    found = differences(old, new)
    print("\n".join([*found, f"{len(set(old) & set(new))} kernels in both, {len(found)} differ; NVRTC {new_nvrtc}, sm {options.sm}"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
