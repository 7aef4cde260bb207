#!/usr/bin/env python3
"""How long many processes with empty disks take to have a model's kernels: from a remote cache, from a bundle, by compiling.

    tools/bench/fleet.py --bin build/release/bin/attnsmith --model tests/models/llama-3.1-8b.json --sm 90 --processes 64

With --stand-in it also says what a remote that misbehaves costs them, beside the same processes without a remote:

    tools/bench/fleet.py --bin build/release/bin/attnsmith --stand-in build/release/tests/support/libattnsmith_fake_nvrtc.so

The stand-in for NVRTC sleeps instead of compiling, so that a compile takes the same time whoever else runs, and a row differs from
the one without a remote by what waiting for the remote cost. What 64 processes and the server take of this machine's cores is in
that, too. TMPDIR=/dev/shm leaves out what the disk's syncs cost.

Needs nginx with its DAV module (Debian's nginx-light), which serves a folder that this fills first; no GPU. All processes are on
one machine; compare rows of one run."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
KILLED = "nginx, killed when half is fetched"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

sys.path.insert(0, str(REPOSITORY / "tests/cli"))
import remote_server  # noqa: E402


def start_nginx(folder):
    """The server of examples/fleet, in a folder of its own; its process and the remote's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = folder / "srv"
    (root / "attnsmith/tmp").mkdir(parents=True, exist_ok=True)
    text = (REPOSITORY / "examples/fleet/nginx.conf").read_text(encoding="utf-8")
    text = text.replace("/srv", str(root)).replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/run/nginx.pid",
                                                                                                     str(folder / "pid"))
    text = text.replace("access_log off;", f"access_log {folder}/access.log;")
    if os.geteuid() == 0:
        text = "user root;\n" + text
    configuration = folder / "nginx.conf"
    configuration.write_text(text, encoding="utf-8")
    process = subprocess.Popen([NGINX, "-c", configuration, "-g", "daemon off;"], stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/attnsmith"
        time.sleep(0.05)
    process.kill()
    sys.exit("fleet.py: nginx does not start; run it by hand: " + f"{NGINX} -t -c {configuration}")


@contextlib.contextmanager
def empty_nginx(folder):
    """An nginx that says 404 to everything. It takes next to nothing of the cores that the processes run on, which a server in
    Python does take."""
    folder.mkdir()
    server, address = start_nginx(folder)
    try:
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


@contextlib.contextmanager
def nothing_listens():
    """An address whose port refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/cache"


@contextlib.contextmanager
def nobody_accepts():
    """An address that lets connections wait: its queue is full, and what comes to it is dropped."""
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/cache"


class Bench:
    def __init__(self, folder, arguments):
        self.folder = folder
        self.program = arguments.bin.resolve()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTNSMITH_CACHE")}
        self.trust = ["--trust-key", "key.pub"]
        self.run("cache", "keygen", "-o", "key")

    def run(self, *command, **more):
        subprocess.run([self.program, *command], cwd=self.folder, check=True, env={**self.environment, **more},
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def all_at_once(self, name, commands, meanwhile=None):
        """Runs `prewarm --json` of each; their summaries, and the wall-clock time until the last has its kernels."""
        began = time.monotonic()
        children = [subprocess.Popen([self.program, *command], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     env={**self.environment, "ATTNSMITH_CACHE_HEADERS": f"X-Process: {number}"})
                    for number, command in enumerate(commands)]
        if meanwhile:
            meanwhile()
        summaries = []
        for child in children:
            text = child.communicate()[0]
            if child.returncode != 0:
                sys.exit(f"fleet.py: {name}: exit code {child.returncode}")
            summaries.append(json.loads(text)["summary"])
        return summaries, time.monotonic() - began


def total(summaries, word):
    return sum(summary[word] for summary in summaries)


def compare_routes(bench, arguments):
    what = ["--model", str(arguments.model.resolve()), "--sm", arguments.sm]
    server, address = start_nginx(bench.folder)
    try:
        bench.run("prewarm", *what, "--cache", "own", "--cache", address, "--push", "--sign-key", "key", *bench.trust)
        bench.run("cache", "export", "--cache", "own", "-o", "kernels.bundle", "--sign-key", "key")
        log = bench.folder / "access.log"
        print("| from | processes | until all have all | one process, median | kernels | remote | hits | compiled | failed | requests |")
        print("| --- " * 10 + "|")

        def row(name, count, make):
            before = log.read_bytes().count(b"\n")
            summaries, took = bench.all_at_once(name, [["prewarm", *what, "--json", *make(i)] for i in range(count)])
            requests = log.read_bytes().count(b"\n") - before
            one = statistics.median(summary["seconds"] for summary in summaries)
            print(f"| {name} | {count} | {took:.2f} s | {one:.2f} s | " + " | ".join(
                str(total(summaries, word)) for word in ("total", "remote", "hits", "compiled", "failed")) + f" | {requests} |",
                  flush=True)

        for count in (1, arguments.processes):
            row("a remote cache, signed", count, lambda i: [*bench.trust, "--cache", f"remote{count}-{i}", "--cache", address])
            row("a bundle, signed", count, lambda i: [*bench.trust, "--cache", f"bundle{count}-{i}", "--cache", "kernels.bundle"])
        for count in sorted({1, arguments.compiling} if arguments.compiling else ()):
            row("NVRTC", count, lambda i: ["--cache", f"compiled{count}-{i}"])
    finally:
        server.terminate()
        server.wait()


def write_requests(file, count, sms):
    """Requests of kernels that the stand-in can make: merges of so many head dims that there are `count` kernels or more."""
    lines = [json.dumps({"schema": "attnsmith.recorded/1", "request": {"op": "merge", "head_dim_vo": head_dim, "q_heads": 8,
                                                                        "dtype": dtype}})
             for head_dim in range(8, 257, 8) for dtype in ("bf16", "fp16")]
    file.write_text("\n".join(lines[:-(-count // len(sms))]) + "\n", encoding="utf-8")


def measure_losses(bench, arguments):
    """What each kind of server costs, beside the same processes without one."""
    sms = ["80", "86", "87", "89", "90"]
    write_requests(bench.folder / "requests.jsonl", arguments.kernels, sms)
    what = ["--recorded", "requests.jsonl", "--sm", ",".join(sms), "--jobs", str(arguments.jobs)]
    bench.environment.update(ATTNSMITH_NVRTC_PATH=str(arguments.stand_in.resolve()), FAKE_NVRTC_MS=str(arguments.compile_ms))
    count = arguments.processes

    def is_chosen(name):
        return not arguments.manners or any(word in name for word in arguments.manners.split(","))

    def row(name, address, meanwhile=None, without=None):
        disks = [f"disk-{i}" for i in range(count)]
        remote = [*bench.trust, "--cache", address] if address else []
        summaries, took = bench.all_at_once(
            name, [["prewarm", *what, "--json", "--cache", disk, *remote] for disk in disks], meanwhile)
        for disk in disks:  # nothing wrong was stored
            bench.run("cache", "verify", "--cache", disk)
            shutil.rmtree(bench.folder / disk)
        if total(summaries, "compiled") + total(summaries, "remote") != total(summaries, "total"):
            sys.exit(f"fleet.py: {name}: some kernels did not come: {summaries}")
        seconds = [summary["seconds"] for summary in summaries]
        print(f"| {name} | {total(summaries, 'remote')} | {total(summaries, 'compiled')} | {took:.2f} s | {min(seconds):.2f} s | "
              f"{statistics.median(seconds):.2f} s | {max(seconds):.2f} s | " +
              (f"{statistics.median(seconds) - statistics.median(without):+.2f} s | {max(seconds) - min(without):+.2f} s |"
               if without else "| |"), flush=True)
        return seconds

    print(f"\n{count} processes, each with an empty disk and {len(sms) * -(-arguments.kernels // len(sms))} kernels, of which one "
          f"takes {arguments.compile_ms / 1000:g} s. A loss is the time beside that without a remote: of the median process beside "
          "the median, and of the slowest beside the fastest.\n")
    print("| the server | remote | compiled | all done | fastest | median | slowest | median loss | most lost |")
    print("| --- " * 9 + "|")
    without = row("there is none", None)

    with remote_server.RemoteServer(bench.folder / "www") as server, remote_server.RemoteServer(bench.folder / "else") as elsewhere:
        bench.run("prewarm", *what, "--cache", "filled", "--cache", server.address, "--push", "--sign-key", "key", *bench.trust)
        manners = {
            "hangs": remote_server.hangs, "sends a byte a second": remote_server.drips, "closes": remote_server.closes,
            "answers 404": remote_server.answers(404), "answers 403": remote_server.answers(403),
            "answers 500": remote_server.answers(500), "answers 200 and a page": remote_server.answers(200),
            "redirects elsewhere": remote_server.redirects_to(elsewhere.address),
            "promises 10 GB": remote_server.promises_ten_gigabytes, "sends without end": remote_server.sends_without_end,
            "cuts off": remote_server.truncates(server), "changes a byte": remote_server.changes_a_byte(server),
            "is right but takes 0.09 s a request": remote_server.late(0.09),
            "is right but takes 0.5 s a request": remote_server.late(0.5),
            "says 404 after 0.9 s": remote_server.late(0.9, remote_server.answers(404)),
            "is right at first, then hangs": remote_server.after(count * arguments.kernels * 3 // 2, remote_server.hangs),
            "hangs in every third request": remote_server.every(3, remote_server.hangs),
            "earns trust and hangs, again and again": remote_server.earns_and_then(24, remote_server.hangs),
        }
        for name, manner in manners.items():
            if is_chosen(name):
                server.manner = manner
                row(name, server.address, without=without)
        server.manner = None
    for name, place in (("is not there: connections are refused", nothing_listens()),
                        ("does not accept connections", nobody_accepts()),
                        ("nginx, which has nothing", empty_nginx(bench.folder / "empty"))):
        if is_chosen(name):
            with place as address:
                row(name, address, without=without)
    if is_chosen(KILLED):
        killed(bench, what, row, count, without)
    row("there is none, again", None, without=without)


def killed(bench, what, row, count, without):
    """nginx gets SIGKILL once half of all kernels have been fetched."""
    server, address = start_nginx(bench.folder)
    bench.run("prewarm", *what, "--cache", "filled", "--cache", address, "--push", "--sign-key", "key", *bench.trust)
    kernels = len(list((bench.folder / "filled").glob("??/*.entry")))

    def kill():
        while sum(1 for _ in bench.folder.glob("disk-*/??/*.entry")) < count * kernels / 2:
            time.sleep(0.02)
        os.killpg(server.pid, signal.SIGKILL)

    try:
        row(KILLED, address, kill, without)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="the attnsmith program")
    parser.add_argument("--model", type=pathlib.Path, help="compare remote, bundle and NVRTC for this model")
    parser.add_argument("--sm", default="90")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--compiling", type=int, default=2, help="processes of the row that compiles; 0: none")
    parser.add_argument("--stand-in", type=pathlib.Path, help="the tests' stand-in for NVRTC: measure what bad servers cost")
    parser.add_argument("--kernels", type=int, default=20, help="of each process, beside bad servers")
    parser.add_argument("--compile-ms", type=int, default=1000, help="what the stand-in takes for one")
    parser.add_argument("--jobs", type=int, default=2, help="kernels that each process compiles at a time, beside bad servers")
    parser.add_argument("--manners", help="only the servers whose name has one of these words")
    arguments = parser.parse_args()
    if NGINX is None:
        sys.exit("fleet.py: there is no nginx; on Debian: apt-get install nginx-light")
    if not arguments.model and not arguments.stand_in:
        parser.error("--model or --stand-in is needed")
    os.umask(0o022)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-fleet-"))
    try:
        bench = Bench(folder, arguments)
        if arguments.model:
            compare_routes(bench, arguments)
        if arguments.stand_in:
            measure_losses(bench, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
