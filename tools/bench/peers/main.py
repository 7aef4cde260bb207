"""The command line of peers.py."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from . import cases, machine, plots, report, results, summary
from .pace import Pace
from .providers import PROVIDERS
from .runner import Runner, estimate_seconds
from .worker import WorkerDied, serve


END_SECONDS = 5.0  # for the tables and for ending the workers
WRITE_EVERY = 15.0  # so that a run that is cut off leaves what it had


def words(allowed: List[str], aliases: Optional[Dict[str, Sequence[str]]] = None) -> Any:
    """A comma-separated list out of `allowed`; `all` is all of them, and an alias several."""

    def parse(value: str) -> List[str]:
        chosen = [word for alias in value.split(",") if alias for word in (aliases or {}).get(alias, (alias,))]
        if chosen == ["all"]:
            return list(allowed)
        for word in chosen:
            if word not in allowed:
                raise argparse.ArgumentTypeError("%r is none of %s" % (word, ", ".join(allowed)))
        return list(dict.fromkeys(chosen))

    return parse


def positive(kind: Any) -> Any:
    def parse(value: str) -> Any:
        try:
            number = kind(value)
        except ValueError:
            number = 0
        if number <= 0:
            raise argparse.ArgumentTypeError("%r is not a number above 0" % value)
        return number

    return parse


def parser() -> argparse.ArgumentParser:
    names = list(PROVIDERS)
    risky = [name for name in names if PROVIDERS[name].isolated]
    made = argparse.ArgumentParser(
        prog="peers.py", description="attnsmith beside its peers on one GPU: same inputs, same checks, in turn.",
        epilog="example: peers.py --cases prefill,decode --quick --json peers.json --plot plots")
    sets = words(list(cases.SETS), cases.ALIASES)
    made.add_argument("--cases", type=sets, default=list(cases.DEFAULT_SETS), metavar="SET,...",
                      help="%s; storage is %s; %s if not given" % (
                          ", ".join(cases.SETS), ",".join(cases.ALIASES["storage"]), ",".join(cases.DEFAULT_SETS)))
    made.add_argument("--own", type=sets, default=[], metavar="SET,...",
                      help="of these sets measure attnsmith alone, which is compared with itself there")
    made.add_argument("--quick", action="store_true", help="a tenth of the cases")
    made.add_argument("--match", default="", metavar="TEXT", help="only cases whose name has this in it")
    made.add_argument("--dtype", type=words(["bf16", "fp16"]), default=["bf16", "fp16"], metavar="DTYPE,...")
    made.add_argument("--provider", type=words(names), default=names, metavar="NAME,...", help=", ".join(names))
    made.add_argument("--isolate", type=words(names), default=risky, metavar="NAME,...",
                      help="run these each in a process of its own (%s if not given)" % ", ".join(risky))
    made.add_argument("--seconds", type=positive(float), default=0.15,
                      help="of timed launches for each provider and case, over all rounds (0.15)")
    made.add_argument("--within", type=positive(float), metavar="SECONDS",
                      help="for the whole run: shorter measurements where --seconds would not fit")
    made.add_argument("--rest", type=positive(float), default=0.005,
                      help="seconds that the GPU rests before each turn (0.005)")
    made.add_argument("--rounds", type=positive(int), default=6, help="turns of each provider (6)")
    made.add_argument("--compile-seconds", type=positive(float), default=90.0,
                      help="for the kernels that peers compile, all together, before anything is timed (90)")
    made.add_argument("--jobs", type=positive(int), default=max(1, (os.cpu_count() or 2) // 2),
                      help="processes that compile at a time (half of the cores)")
    made.add_argument("--json", metavar="FILE", help="write everything that was measured, %s" % report.SCHEMA)
    made.add_argument("--plot", metavar="DIR", help="write plots of speed against sequence length, as SVG")
    made.add_argument("--publish", nargs="*", metavar="FILE",
                      help="measure nothing: put what these files of --json have into tools/bench/results/peers.json, and "
                           "draw docs/peers.svg and write the table of docs/performance.md from that")
    made.add_argument("--list", action="store_true", help="show cases and providers; needs no GPU")
    made.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return made


def availability(names: List[str]) -> Dict[str, Optional[str]]:
    found: Dict[str, Optional[str]] = {}
    for name in names:
        try:
            found[name] = PROVIDERS[name].available()
        except Exception as error:  # a broken package is a reason, not an end
            found[name] = "%s: %s" % (type(error).__name__, error)
    return found


def show_list(selected: List[cases.Case], reasons: Dict[str, Optional[str]]) -> None:
    for set_name in dict.fromkeys(case.set for case in selected):
        members = [case for case in selected if case.set == set_name]
        print("%s (%d)" % (set_name, len(members)))
        width = max(56, max(len(case.name) for case in members))
        for case in members:
            print("  %s %8.3f TFLOP %8.3f GB" % (case.name.ljust(width), case.flops / 1e12, case.bytes / 1e9))
    print("providers:")
    for name, reason in reasons.items():
        print("  %-14s %s: %s" % (name, PROVIDERS[name].title, reason or "available"))


def fail(message: str) -> int:
    print("peers.py: " + message, file=sys.stderr)
    return 1


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(argv: Optional[List[str]] = None) -> int:
    options = parser().parse_args(argv)
    if options.worker:
        return serve()
    if options.publish is not None:
        print("wrote " + ", ".join(results.publish(options.publish)))
        return 0
    selected = [case for case in cases.select(options.cases, options.dtype, options.quick)
                if options.match in case.name]
    reasons = availability(options.provider)
    if options.list:
        show_list(selected, reasons)
        return 0
    if importlib.util.find_spec("torch") is None:
        return fail("PyTorch is not installed; it makes the inputs and most peers need it (pip install torch)")
    present = [name for name, reason in reasons.items() if not reason]
    if not present or not selected:
        return fail("nothing to measure: no %s selected (see --list)" % ("case" if present else "provider present"))
    if "attnsmith" in options.provider and reasons["attnsmith"]:
        return fail("attnsmith cannot be measured: %s; --provider names peers alone" % reasons["attnsmith"])
    started = time.monotonic()
    runner = Runner(present, options.isolate, options.seconds, options.rounds, options.compile_seconds, options.jobs,
                    say, own_sets=options.own, rest=options.rest)
    compiling = any(PROVIDERS[name].compiles for name in present)
    guess = estimate_seconds(runner.turns_of(selected), options.seconds, options.compile_seconds if compiling else 0.0)
    guess = min(guess, options.within or guess)
    say("%d cases, %s: about %.0f min %02.0f s" % (len(selected), ", ".join(present), guess // 60, guess % 60))
    pace = Pace(options.within and started + options.within - END_SECONDS, options.seconds)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` gets what was measured until then, too
    try:
        return measure(options, runner, pace, selected, present, reasons)
    except WorkerDied as error:
        return fail(str(error))
    finally:
        runner.close()


def run_case(runner: Runner, pace: Pace, left: Sequence[cases.Case]) -> Optional[Dict[str, Any]]:
    """The first of those that are left; None where there is no time for it."""
    started = time.monotonic()
    seconds = pace.seconds(started, runner.turns_of(left))
    if seconds is None:
        return None
    runner.seconds = seconds
    entry = runner.run(left[0])
    pace.took(time.monotonic() - started, runner.turns_of(left[:1]), seconds)
    return entry


def write_json(document: Dict[str, Any], path: str) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def measure(options: argparse.Namespace, runner: Runner, pace: Pace, selected: List[cases.Case], present: List[str],
            reasons: Dict[str, Optional[str]]) -> int:
    started = time.time()
    runner.start(selected)
    described = runner.describe()
    if "error" in described:
        return fail(described["error"])
    versions = described.pop("versions")
    before = machine.read_gpu()
    print_machine(described, before, versions, present)
    runner.build(selected)
    ceilings = runner.ceilings()
    print("ceilings: copy %.2f TB/s, bf16 matrix product %.0f TFLOP/s" % (
        ceilings["copy_tbps"], ceilings["matmul_bf16_tflops"]), flush=True)
    document: Dict[str, Any] = {
        "schema": report.SCHEMA, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "machine": dict(described, python=platform.python_version(), gpu_before=before),
        "method": {"seconds": options.seconds, "rounds": options.rounds, "rest": options.rest,
                   "within": options.within, "isolated": options.isolate, "quick": options.quick,
                   "sets": options.cases, "own": options.own},
        "ceilings": ceilings, "measured": present, "cases": [],
        "providers": {name: {"title": PROVIDERS[name].title, "reason": reason, "versions": versions.get(name, {})}
                      for name, reason in reasons.items()},
    }
    measure_cases(options, runner, pace, selected, document)
    document["left_out"] = [case.name for case in selected[len(document["cases"]):]]
    document["machine"]["gpu_after"] = machine.read_gpu()
    document["seconds"] = round(time.time() - started, 1)
    document["geomeans"] = report.geomeans(document["cases"], present)
    document["held"] = summary.held(document["cases"])
    document["over_own_bf16"] = summary.over_own_bf16(document["cases"])
    give_out(options, document)
    return 0


def print_machine(described: Dict[str, Any], gpu: Dict[str, Any], versions: Dict[str, Dict[str, str]],
                  present: List[str]) -> None:
    print("%s, driver %s, SM clock %s of %s, memory clock %s, limit %s; Python %s, PyTorch %s, CUDA %s" % (
        described["device"], gpu.get("driver_version", "?"), gpu.get("clocks.sm", "?"),
        gpu.get("clocks.max.sm", "?"), gpu.get("clocks.mem", "?"), gpu.get("power.limit", "?"),
        platform.python_version(), described["torch"], described["cuda"]))
    for name in present:
        print("  %s: %s" % (name, ", ".join("%s %s" % item for item in versions.get(name, {}).items()) or "?"))


def measure_cases(options: argparse.Namespace, runner: Runner, pace: Pace, selected: List[cases.Case],
                  document: Dict[str, Any]) -> None:
    """Adds what it measures to the document, and writes that down now and then."""
    written = time.monotonic()
    try:
        for i, case in enumerate(selected):
            entry = run_case(runner, pace, selected[i:])
            if entry is None:
                say("no time is left for %d cases" % (len(selected) - i))
                break
            document["cases"].append(entry)
            say("[%d/%d] %s: %s" % (i + 1, len(selected), case.name, "  ".join(
                "%s %s" % (name, report.cell(entry, name)) for name in document["measured"]
                if name in entry["results"])))
            if options.json and time.monotonic() > written + WRITE_EVERY:
                write_json(document, options.json)
                written = time.monotonic()
    except KeyboardInterrupt:
        say("interrupted: what was measured so far follows")


def give_out(options: argparse.Namespace, document: Dict[str, Any]) -> None:
    if options.json:
        write_json(document, options.json)
    print(report.text(document))
    print(summary.text(document), flush=True)
    if options.plot:
        say("%d plots in %s" % (plots.write(document, options.plot), options.plot))
    wrong = [entry["name"] for entry in document["cases"]
             if any(result["status"] == "wrong" for result in entry["results"].values())]
    if wrong:
        say("%d cases have WRONG answers" % len(wrong))
