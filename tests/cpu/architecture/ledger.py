"""The ledgers, tests/gpu/LEDGER.json and tests/python/gpu/LEDGER.json, which runs of the GPU suites write: what they say,
and of which sources. Run as a program it prints the digests of the sources now."""

import hashlib
import json
import pathlib
import subprocess

# By ledger, the folders whose files it is of.
LIBRARY = ("kernel_templates", "runtime")
LEDGERS = {"tests/gpu/LEDGER.json": LIBRARY, "tests/python/gpu/LEDGER.json": (*LIBRARY, "tools/python")}
COUNTS = ("passed", "failed", "skipped")


def sources_digest(root, folders=LIBRARY):
    """What `git ls-files FOLDERS ':!*.md' | LC_ALL=C sort | xargs sha256sum | sha256sum` prints.

    Notes are left out: a run's own numbers go there.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", *folders, ":!*.md"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.split(b"\0")
    total = hashlib.sha256()
    for name in sorted(filter(None, names)):
        digest = hashlib.sha256((root / name.decode()).read_bytes()).hexdigest()
        total.update(digest.encode() + b"  " + name + b"\n")
    return total.hexdigest()


def faults(text):
    """What is wrong with a ledger of this text; empty for one of a run without failures."""
    try:
        ledger = json.loads(text)
    except json.JSONDecodeError as error:
        return [f"is not JSON: {error}"]
    if not isinstance(ledger, dict):
        return ["is not a JSON object"]
    found = []
    sources = ledger.get("sources")
    if not (isinstance(sources, str) and len(sources) == 64 and set(sources) <= set("0123456789abcdef")):
        found.append(f"`sources` is no SHA-256: {sources!r}")
    for count in COUNTS:
        value = ledger.get(count)
        if type(value) is not int or value < 0:
            found.append(f"`{count}` is no count: {value!r}")
    if not found and ledger["failed"] > 0:
        found.append(f"{ledger['failed']} tests failed on the GPU")
    if not found and ledger["passed"] == 0:
        found.append("no test passed on the GPU")
    return found


if __name__ == "__main__":
    for name, folders in LEDGERS.items():
        print(sources_digest(pathlib.Path(__file__).resolve().parents[3], folders), name)
