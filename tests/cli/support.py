"""Drives the real attnsmith program. ATTNSMITH_BIN is its path; ATTNSMITH_FAKE_CUDA and ATTNSMITH_FAKE_NVRTC,
if set, stubs of libcuda and libnvrtc."""

import fcntl
import functools
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import unittest
from typing import NamedTuple

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / "tests/models"
# A model type that nobody knows, with a field that nobody reads.
QUASAR = {"model_type": "quasar", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "kv_bend": 2,
          "torch_dtype": "bfloat16"}
# Its indexer selects 2048 keys.
SPARSE = {"model_type": "deepseek_v32", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2,
          "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_topk": 2048,
          "torch_dtype": "bfloat16"}
LLAMA = str(MODELS / "llama-3.1-8b.json")
# Its decode is not supported: latents of 500 columns.
PARTIAL = str(MODELS / "partial" / "latent-500.json")
SCHEMAS = REPOSITORY / "runtime/schemas"
BINARY = os.environ.get("ATTNSMITH_BIN", str(REPOSITORY / "build/release/bin/attnsmith"))
FAKE_CUDA = os.environ.get("ATTNSMITH_FAKE_CUDA", "")
FAKE_NVRTC = os.environ.get("ATTNSMITH_FAKE_NVRTC", "")

# A small problem, and a model of such: quick to plan, and a few kernels that compile quickly.
SMALL = ["--head-dim", "16", "--q-heads", "8", "--mask", "causal"]
SMALL_LLAMA = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 8, "num_hidden_layers": 2,
               "torch_dtype": "bfloat16"}
NOBODY = 65534
TIMEOUT = 240  # seconds, of one run: far above any; sanitizers are slow


@functools.lru_cache(maxsize=None)
def schemas():
    """The schemas by what they call themselves: "urn:attnsmith:plan/1"."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(SCHEMAS.glob("*.schema.json"))]
    return {document["$id"]: document for document in documents}


def schema_of(document):
    """What is wrong with what a command printed, by the schema that it names."""
    return schemas()["urn:" + document["schema"].replace(".", ":", 1)]


@functools.lru_cache(maxsize=None)
def validator(identifier):
    """None where jsonschema is not installed."""
    try:
        import jsonschema
    except ImportError:
        return None
    schema = schemas()[identifier]
    jsonschema.Draft7Validator.check_schema(schema)
    try:
        import referencing
        from referencing.jsonschema import DRAFT7
    except ImportError:  # an older one
        resolver = jsonschema.RefResolver.from_schema(schema, store=schemas())
        return jsonschema.Draft7Validator(schema, resolver=resolver)
    resources = [(name, referencing.Resource.from_contents(one, default_specification=DRAFT7))
                 for name, one in schemas().items()]
    return jsonschema.Draft7Validator(schema, registry=referencing.Registry().with_resources(resources))


def resolved(schema, base):
    """The schema that a $ref leads to, with the document that it is in."""
    while "$ref" in schema:
        name, _, pointer = schema["$ref"].partition("#")
        schema = base = schemas()[name] if name else base
        for step in pointer.split("/")[1:]:
            schema = schema[step]
    return schema, base


def fields_of(schema, base):
    """The fields that a schema gives, with the documents that they are in: its own, and those of its alternatives."""
    schema, base = resolved(schema, base)
    fields = {}
    for kind in ("oneOf", "anyOf", "allOf"):
        for part in schema.get(kind, []):
            fields |= fields_of(part, base)
    return fields | {name: (field, base) for name, field in schema.get("properties", {}).items()}


def undocumented(value, schema, base=None, path=""):
    """The paths of the fields of a document that its schema does not have. A schema with additionalProperties has them all."""
    base = base or schema
    fields = fields_of(schema, base)
    schema, base = resolved(schema, base)
    if isinstance(value, list):
        return [found for item in value for found in undocumented(item, schema.get("items", {}), base, path + "[]")]
    if not isinstance(value, dict):
        return []
    others = schema.get("additionalProperties")
    found = []
    for name, item in value.items():
        if name in fields:
            found += undocumented(item, *fields[name], f"{path}.{name}")
        elif others:
            found += undocumented(item, others, base, f"{path}.*")
        elif others is None:
            found.append(f"{path}.{name}")
    return found


def check_schema(document):
    """Raises AssertionError where what was printed does not meet its schema, or has a field that no schema describes."""
    schema = schema_of(document)
    missing = [field for field in schema["required"] if field not in document]
    assert not missing, f"{document['schema']} has no {missing}"
    unknown = sorted(set(undocumented(document, schema)))
    assert not unknown, f"{document['schema']} does not describe {unknown}"
    if found := validator(schema["$id"]):
        for error in found.iter_errors(document):
            raise AssertionError(f"{document['schema']}: {error.json_path}: {error.message}")

# A shell's background job ignores Ctrl-C, and so would every program that is started here.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self):
        """What was printed, once it meets its schema."""
        document = json.loads(self.out)
        check_schema(document)
        return document


class CliTest(unittest.TestCase):
    """Each test has a folder of its own, which is the working directory and the home of what it runs."""

    maxDiff = None

    def setUp(self):
        os.umask(0o022)  # a cache that the group may write to is not trusted
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def environment(self, **changes):
        """This process's, without what would reach the program by accident; None takes a variable away."""
        kept = {name: value for name, value in os.environ.items()
                if name == "ATTNSMITH_NVRTC_PATH" or not name.startswith(("ATTNSMITH_", "AWS_", "XDG_", "FAKE_CUDA_")) and
                name not in ("VIRTUAL_ENV", "CONDA_PREFIX", "NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "TERM")}
        # No GPU, also on a machine that has one: what is told of it here would be told of no other.
        kept.update(HOME=str(self.folder / "home"), CUDA_VISIBLE_DEVICES="-1", TERM="xterm")
        kept.update({name: value for name, value in changes.items() if value is not None})
        return {name: value for name, value in kept.items() if changes.get(name, value) is not None}

    def start(self, *arguments, env=None, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([BINARY, *map(str, arguments)], cwd=self.folder, env=self.environment(**(env or {})),
                                **options)

    def finish(self, process, text=None):
        self.addCleanup(process.kill)
        out, err = process.communicate(text, timeout=TIMEOUT)
        return Result(process.returncode, (out or b"").decode(), (err or b"").decode())

    def run_cli(self, *arguments, env=None, stdin=None):
        if stdin is None:
            return self.finish(self.start(*arguments, env=env))
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        return self.finish(self.start(*arguments, env=env, stdin=subprocess.PIPE), data)

    def run_as_user(self, *arguments, env=None):
        """As somebody whom file modes hold for: root's run is nobody's, which needs folders given by give()."""
        if os.geteuid() != 0:
            return self.run_cli(*arguments, env=env)
        try:
            return self.finish(self.start(*arguments, env=env, user=NOBODY, group=NOBODY, extra_groups=[]))
        except PermissionError as error:
            self.skipTest(f"nobody may not run the program: {error}")

    def give(self, name):
        """A folder of this test's, to who runs by run_as_user()."""
        self.folder.chmod(0o755)
        if os.geteuid() == 0:
            for path in [self.folder / name, *(self.folder / name).rglob("*")]:
                os.chown(path, NOBODY, NOBODY)

    def write(self, name, content):
        file = self.folder / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(file)

    def assert_ok(self, result):
        self.assertEqual((result.code, result.err), (0, ""))
        return result

    def assert_error_line(self, result, code, *words):
        """One line on standard error that has the words, and this exit code."""
        self.assertEqual(result.code, code, result.err)
        self.assertTrue(result.err.startswith("attnsmith: error: "), result.err)
        self.assertEqual(result.err.count("\n"), 1, result.err)
        for word in words:
            self.assertIn(word, result.err)

    def assert_refused(self, result, *words):
        """A bad request: exit code 2, one line, and nothing on standard output but that line's JSON."""
        self.assert_error_line(result, 2, *words)
        if result.out:
            self.assert_error_json(result)

    def assert_error_json(self, result):
        """What --json prints where there is nothing else to print: the error of the line on standard error."""
        error = result.json()
        self.assertEqual((error["schema"], error["exit_code"]), ("attnsmith.error/1", result.code))
        self.assertIn(error["message"].splitlines()[0][:60], result.err.replace("\\x1b", "\x1b"))
        return error

    def assert_failed(self, result, *words):
        self.assert_error_line(result, 1, *words)

    def assert_plan(self, plan):
        """A plan of its own, or of a list."""
        self.assertEqual(plan["schema"], "attnsmith.plan/1")
        check_schema(plan)

    def known_sms(self):
        """The compute capabilities that there are, as the error for another lists them."""
        error = self.run_cli("plan", *SMALL, "--sm", "1", "--json").json()
        listed = re.search(r"one of (\d+(?:, \d+)+)", error["accepted"]).group(1)
        return [int(sm) for sm in listed.split(", ")]

    def prewarm_small(self, cache, *more, env=None):
        """The SMALL problem for sm 90, compiled into a folder."""
        return self.prewarmed(cache, *SMALL, "--sm", "90", *more, env=env)

    def prewarmed(self, cache, *words, env=None):
        """The report of `prewarm WORDS` into a folder. A new folder gets a copy of what the first test of the class has
        compiled with the same words into its own."""
        place = self.folder / cache
        made = type(self).__dict__.get("_made", {})
        is_new = env is None and not place.exists()
        if is_new and words in made:
            folder, report = made[words]
            shutil.copytree(folder, place)
            return {**report, "kernels": [{**kernel, "directory": str(place.resolve())} for kernel in report["kernels"]]}
        report = self.assert_ok(self.run_cli("prewarm", *words, "--cache", cache, "--json", env=env)).json()
        if is_new:
            kept = tempfile.TemporaryDirectory(prefix="attnsmith-cli-made-")
            self.addClassCleanup(kept.cleanup)
            shutil.copytree(place, pathlib.Path(kept.name) / "cache")
            type(self)._made = {**made, words: (pathlib.Path(kept.name) / "cache", report)}
        return report


@unittest.skipUnless(FAKE_CUDA, "ATTNSMITH_FAKE_CUDA names no stub of libcuda")
class FakeGpuTest(CliTest):
    """With a stub of the driver, which computes nothing."""

    def setUp(self):
        super().setUp()
        (self.folder / "driver").mkdir()
        shutil.copy(FAKE_CUDA, self.folder / "driver/libcuda.so.1")

    def environment(self, **changes):
        path = os.pathsep.join(filter(None, [str(self.folder / "driver"), os.environ.get("LD_LIBRARY_PATH")]))
        return super().environment(**{"LD_LIBRARY_PATH": path, "CUDA_VISIBLE_DEVICES": None, **changes})


def on_terminal(test, *arguments, env=None, output=False):
    """What the program draws on a terminal of 80 columns: its standard error, or, if `output`, all that it writes."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:  # a container without /dev/pts
        test.skipTest(f"no pseudo-terminal: {error}")
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    streams = {"stdout": theirs, "stderr": theirs} if output else {"stderr": theirs}
    process = test.start(*arguments, env=env, **streams)
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 4096):
            drawn += chunk
    except OSError:  # what the end of a pty is
        pass
    os.close(ours)
    return test.finish(process).code, drawn.decode()


def examples(text):
    """The examples of a --help, as argument lists; a backslash at a line's end goes on with the next."""
    text = text.replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("  attnsmith ") and
            line.strip() != "attnsmith"]


def main():
    unittest.main()
