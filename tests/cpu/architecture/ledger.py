"""tests/gpu/LEDGER.json, which a run of the GPU suite writes: what it says, and of which sources."""

import hashlib
import json
import subprocess

COUNTS = ("passed", "failed", "skipped")


def sources_digest(root):
    """What `git ls-files kernel_templates runtime ':!*.md' | LC_ALL=C sort | xargs sha256sum | sha256sum` prints.

    Notes are left out: a run's own numbers go there.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", "kernel_templates", "runtime", ":!*.md"]
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
