"""What README.md and the pages of docs/ show of the command is what the command does."""

import json
import re
import shlex
import typing

from support import MODELS, REPOSITORY, CliTest, main

README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
RECORDED = json.dumps({"schema": "attnsmith.recorded/1", "request": {"op": "merge", "head_dim": 64, "q_heads": 8}}) + "\n"


def text_of(page):
    return page.read_text(encoding="utf-8")


def sessions(page):
    """The blocks that show a terminal: lists of (command, lines that it printed)."""
    found = []
    for block in re.findall(r"^```\n(\$ .*?)^```$", text_of(page), re.MULTILINE | re.DOTALL):
        session = []
        for line in block.splitlines():
            if line.startswith("$ "):
                session.append((line[2:].partition("  #")[0].rstrip(), []))
            else:
                session[-1][1].append(line)
        found.append(session)
    return found


def table(page, *heads):
    """The rows of the table with these heads, as lists of cells."""
    text = text_of(page)
    head = re.search(r"^\| *%s *\|\n" % r" *\| *".join(map(re.escape, heads)), text, re.MULTILINE)
    assert head, f"{page.name} has no table {heads}"
    rows = re.match(r"(?:\|.*\n)+", text[head.end():])[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def words_in(cell):
    return re.findall(r"`([^`]+)`", cell)


def general(line):
    """A line without what differs from run to run: places, times and who was first."""
    line = re.sub(r"\bin /\S+/", "in /HERE/", re.sub(r"^\[\d+/", "[n/", line))
    return re.sub(r"[0-9.]+ s\b", "N s", line)


class Shown(typing.NamedTuple):
    """A line of a page: all of what was printed, or, with "..." at its end, how that begins."""

    text: str

    def is_in(self, said):
        line = general(self.text)
        if line.endswith("..."):
            return any(one.startswith(line[:-3].rstrip()) for one in said)
        return line in said


class Sessions(CliTest):
    def setUp(self):
        super().setUp()
        (self.folder / "tests").mkdir()
        (self.folder / "tests/models").symlink_to(MODELS)
        self.write("staging.jsonl", RECORDED)

    def check(self, page, least):
        """Runs every attnsmith command of the page, in order, in one folder."""
        run = 0
        for command, shown in (pair for session in sessions(page) for pair in session):
            program, *arguments = shlex.split(command)
            if program != "attnsmith" or arguments == ["doctor"]:
                continue  # see Readme.test_every_other_command_has_a_test; a doctor's report is the machine's
            run += 1
            with self.subTest(command=command):
                result = self.run_cli(*arguments)
                self.assertEqual(result.code, 0, result.err)
                said = [general(line) for line in (result.err + result.out).splitlines()]
                for line in shown:
                    self.assertTrue(line == "..." or Shown(line).is_in(said), f"{line}\nis not in\n" + "\n".join(said))
        self.assertGreaterEqual(run, least)

    def test_readme(self):
        self.check(README, 2)

    def test_reading_a_plan(self):
        self.check(DOCS / "reading-a-plan.md", 1)

    def test_models(self):
        self.check(DOCS / "models.md", 1)

    def test_shipping_kernels(self):
        self.check(DOCS / "shipping-kernels.md", 2)


class Readme(CliTest):
    # By command, the test that runs it or its equal.
    ELSEWHERE = {"pip install .": "tests/python/wheel_test.py", "pip install '.[nvrtc]'": "tests/python/wheel_test.py",
                 "attnsmith doctor": "tests/cli/test_doctor.py",
                 "g++ -std=c++20 first_program.cpp $(pkg-config --cflags --libs attnsmith)": "tests/consumer/consumer_test.cmake"}

    def test_every_other_command_has_a_test(self):
        others = {command for session in sessions(README) for command, _ in session
                  if not re.match("attnsmith (plan|prewarm)", command)}
        others |= set(re.findall(r"`(g\+\+ .*?)`", text_of(README)))
        self.assertEqual(others, set(self.ELSEWHERE))
        for test in self.ELSEWHERE.values():
            self.assertTrue((REPOSITORY / test).exists(), test)

    def test_packages_are_those_that_set_up_installs(self):
        packages = set(re.search(r"`sudo apt-get install (.*?)`", text_of(README)).group(1).split())
        setup = (REPOSITORY / "tools/setup/setup.sh").read_text(encoding="utf-8")
        libraries = set(re.search(r"^libraries=\((.*?)\)", setup, re.MULTILINE).group(1).split())
        self.assertEqual(packages - {"g++", "cmake", "ninja-build"}, libraries)

    def test_commands_are_those_that_help_lists(self):
        listed = re.search(r"^Commands:\n(.*?)\n\n", self.assert_ok(self.run_cli("--help")).out, re.MULTILINE | re.DOTALL)[1]
        named = [words_in(row[0])[0] for row in table(README, "command", "what it does")]
        self.assertEqual(set(named), {f"attnsmith {name}" for name in re.findall(r"^  (\w+)", listed, re.MULTILINE)} -
                         {"attnsmith help"})

    REQUESTS = {
        "attention and latent attention (`mla`, DeepSeek), fp16 and bf16": [
            *(["--head-dim", "128", "--q-heads", "8", "--dtype", dtype, "--q-len", q_len] for dtype in ("fp16", "bf16")
              for q_len in ("1", "1024")),
            ["--op", "mla", "--head-dim-ckv", "512", "--head-dim-kpe", "64", "--q-heads", "16", "--scale", "0.1"]],
        "fp8 KV (e4m3, e5m2)": [["--head-dim", "128", "--q-heads", "8", "--kv-dtype", dtype, "--q-len", q_len]
                                for dtype in ("e4m3", "e5m2") for q_len in ("1", "1024")],
        "`append`, `merge`, `top_k`": [
            ["--op", "append", "--head-dim", "128", "--q-heads", "8", "--kv", "paged", "--page-size", "16"],
            ["--op", "merge", "--head-dim", "128", "--q-heads", "8"], ["--op", "top_k"]]}

    def test_what_is_supported(self):
        heads = ("GPU", *self.REQUESTS, "status")
        named = []
        for gpu, *cells, _ in table(README, *heads):
            sms = re.findall(r"\b\d{2,3}\b", gpu.replace("sm_", " "))
            named += map(int, sms)
            for (column, requests), cell in zip(self.REQUESTS.items(), cells):
                found = set()
                for request in requests:
                    plans = self.assert_ok(self.run_cli("plan", *request, "--sm", ",".join(sms), "--json")).json()
                    for plan in plans.get("plans", [plans]):
                        found |= {kernel["backend"] for kernel in plan["kernels"] if "backend" in kernel}
                if words_in(cell):
                    self.assertEqual(found, set(words_in(cell)), (gpu, column))
                else:
                    self.assertEqual(cell, "yes")
        self.assertEqual(sorted(named), self.known_sms())

    def test_head_dims(self):
        for head_dim in ("8", "512"):
            self.assert_ok(self.run_cli("plan", "--head-dim", head_dim, "--q-heads", "1", "--sm", "80", "-q"))
        self.assertNotEqual(self.run_cli("plan", "--head-dim", "520", "--q-heads", "1", "--sm", "80").code, 0)


class CommandLine(CliTest):
    PAGE = DOCS / "command-line.md"

    def test_variables_are_those_that_help_lists(self):
        listed = self.assert_ok(self.run_cli("--help")).out.partition("\nEnvironment:\n")[2]
        names = re.findall(r"^  ((?:[A-Z][A-Z0-9_]+(?:, )?)+)", listed, re.MULTILINE)
        shown = [name for row in table(self.PAGE, "variable", "meaning", "default") for name in words_in(row[0])]
        self.assertEqual(sorted(shown), sorted(name for group in names for name in group.split(", ")))

    def test_exit_codes_are_those_that_help_lists(self):
        listed = self.assert_ok(self.run_cli("--help")).out.partition("\nExit codes:\n")[2].partition("\n\n")[0]
        self.assertEqual([row[0] for row in table(self.PAGE, "exit code", "meaning")],
                         re.findall(r"^  (\d[\d, ]*?)  ", listed, re.MULTILINE))

    def test_defaults(self):
        request = self.assert_ok(self.run_cli("plan", "--head-dim", "64", "--q-heads", "1", "--sm", "90", "--json")).json()
        model = self.assert_ok(self.run_cli("plan", "--model", MODELS / "llama-3.1-8b.json", "--sm", "90", "--json")).json()
        prefill, decode = (plan["request"] for plan in model["plans"])
        rows = table(self.PAGE, "word", "of a request", "of a model")
        self.assertGreater(len(rows), 14)
        for names, *cells in rows:
            for name in words_in(names):
                for cell, seen in zip(cells, ((request["request"],), (prefill, decode))):
                    said = [re.sub(r"[`,]", "", word) for word in re.findall(r"`\w+`|\b\d+\b(?!/)", cell)]
                    if said == ["dtype"]:
                        said = [seen[0]["dtype"]]
                    if said and "none" not in cell and name != "slots" and "float32" not in cell:
                        self.assertEqual(list(dict.fromkeys(str(one[name]) for one in seen)), said, (name, cell))

    def test_sms(self):
        listed = re.search(r"names compute capabilities: ([\d, ]+),? or `all`", text_of(self.PAGE)).group(1)
        self.assertEqual([int(sm) for sm in re.findall(r"\d+", listed)], self.known_sms())


class Plans(CliTest):
    PAGE = DOCS / "reading-a-plan.md"

    def test_columns_are_those_that_are_printed(self):
        printed = self.assert_ok(self.run_cli("plan", "--head-dim", "64", "--q-heads", "1", "--sm", "90")).out
        heads = re.search(r"^  (role .*)$", printed, re.MULTILINE)[1].split()
        self.assertEqual([words_in(row[0])[0] for row in table(self.PAGE, "column", "meaning")], heads)

    def test_roles_policies_and_tunings_are_those_of_the_schema(self):
        schema = json.loads((REPOSITORY / "runtime/schemas/plan.schema.json").read_text(encoding="utf-8"))
        kernel = schema["definitions"]["kernel"]["properties"]
        columns = {words_in(row[0])[0]: row[1] for row in table(self.PAGE, "column", "meaning")}
        for column in ("role", "tuning"):
            self.assertEqual(re.findall(r"`([a-z_]+)`:", columns[column]), kernel[column]["enum"])
        policies = [words_in(row[1])[0] for row in table(self.PAGE, "text", "`policy` in JSON", "meaning")]
        self.assertEqual(sorted(policies), sorted(schema["properties"]["split_kv"]["properties"]["policy"]["enum"]))
        backends = re.findall(r"`(\w+)` (?:uses|multiplies)", text_of(self.PAGE).partition("**Backends**")[2])
        self.assertEqual(sorted(backends), sorted(kernel["backend"]["enum"]))

    def test_reasons_are_those_that_plans_give(self):
        reasons = set()
        for words in (["--kv", "paged", "--page-size", "16"], ["--q-len", "64"], ["--precision", "high"]):
            plan = self.assert_ok(self.run_cli("plan", "--head-dim", "128", "--q-heads", "32", "--kv-heads", "8", "--kv-len",
                                               "4096", "--sm", "90", "--json", *words)).json()
            reasons |= {self.numberless(refusal["reason"]) for refusal in plan["rejected"] + plan["unused"]}
        rows = table(self.PAGE, "reason", "meaning")
        self.assertGreater(len(rows), 5)
        for row in rows:
            said = self.numberless(words_in(row[0])[0])
            self.assertTrue(any(reason.startswith(said) for reason in reasons), f"{said} is in none of {reasons}")

    @staticmethod
    def numberless(text):
        """Without numbers and names of kernels, which a change of a cost model changes."""
        return re.sub(r"the time of .*? (in the steady|for 0)", r"the time of N \1", re.sub(r"\d+(\.\d+)?", "0", text))

    def test_a_request_can_be_given_back(self):
        plan = self.assert_ok(self.run_cli("plan", "--head-dim", "64", "--q-heads", "4", "--kv", "paged", "--page-size", "16",
                                           "--sm", "90", "--json")).json()
        file = self.write("request.json", json.dumps(plan["request"]))
        again = self.assert_ok(self.run_cli("plan", "--request", file, "--sm", "90", "--json")).json()
        self.assertEqual(again, plan)


class Models(CliTest):
    def test_types_are_those_of_the_reader(self):
        source = (REPOSITORY / "runtime/models/types.cpp").read_text(encoding="utf-8")
        known = dict(re.findall(r'\{"([^"]+)", (\w+)\}', source.partition("kKnown[]")[2].partition("};")[0]))
        refused = set(re.findall(r'\{"([^"]+)",\s', source.partition("kRefused[]")[2].partition("};")[0]))
        self.assertGreater(len(known), 150)
        rows = [words_in(cell) for _, cell in table(DOCS / "models.md", "kind", "`model_type`")]
        listed = {name: index for index, row in enumerate(rows) for name in row}
        self.assertEqual(len(listed), sum(map(len, rows)), "a type is listed twice")
        self.assertEqual(set(listed), set(known) | refused)
        for index, row in enumerate(rows[:-1]):
            self.assertEqual(len({known[name] for name in row}), 1, f"row {index} has types of several classes")
        self.assertEqual(set(rows[-1]), refused)


if __name__ == "__main__":
    main()
