#!/usr/bin/env python3
"""How long many processes with empty disks take to have a model's kernels: from a remote cache, from a bundle, by compiling.

    tools/bench/fleet.py --bin build/release/bin/attnsmith --model tests/models/llama-3.1-8b.json --sm 90 --processes 64

Needs nginx with its DAV module (Debian's nginx-light), which serves a folder that this fills first; no GPU. All processes are on
one machine, so what they take of its cores is in every row; compare rows of one run."""

import argparse
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def start_nginx(folder):
    """The server of examples/fleet, in a folder of its own; its process and the remote's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = folder / "srv"
    (root / "attnsmith/tmp").mkdir(parents=True)
    text = (REPOSITORY / "examples/fleet/nginx.conf").read_text(encoding="utf-8")
    text = text.replace("/srv", str(root)).replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/run/nginx.pid",
                                                                                                     str(folder / "pid"))
    if os.geteuid() == 0:
        text = "user root;\n" + text
    configuration = folder / "nginx.conf"
    configuration.write_text(text, encoding="utf-8")
    process = subprocess.Popen([NGINX, "-c", configuration, "-g", "daemon off;"], stderr=subprocess.DEVNULL)
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/attnsmith"
        time.sleep(0.05)
    process.kill()
    sys.exit("fleet.py: nginx does not start; run it by hand: " + f"{NGINX} -t -c {configuration}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="the attnsmith program")
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--sm", default="90")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--compiling", type=int, default=2, help="processes of the row that compiles; 0: none")
    arguments = parser.parse_args()
    if NGINX is None:
        sys.exit("fleet.py: there is no nginx; on Debian: apt-get install nginx-light")
    os.umask(0o022)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="attnsmith-fleet-"))
    program = arguments.bin.resolve()
    what = ["--model", str(arguments.model.resolve()), "--sm", arguments.sm]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTNSMITH_CACHE")}

    def run(*command, **more):
        subprocess.run([program, *command], cwd=folder, check=True, env={**environment, **more}, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def row(name, processes, make):
        """Starts them all at once; the wall-clock time until the last has its kernels."""
        began = time.monotonic()
        children = [subprocess.Popen([program, *make(i)], cwd=folder, env=environment, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL) for i in range(processes)]
        summaries, times = [], []
        for child in children:
            text = child.communicate()[0]
            times.append(time.monotonic() - began)
            if child.returncode != 0:
                sys.exit(f"fleet.py: {name}: exit code {child.returncode}")
            summaries.append(json.loads(text).get("summary", {}))
        def total(word):
            return sum(summary.get(word, 0) for summary in summaries)
        print(f"| {name} | {processes} | {max(times):.2f} s | {total('total')} | {total('remote')} | {total('hits')} | "
              f"{total('compiled')} | {total('failed')} |", flush=True)

    server, address = start_nginx(folder)
    try:
        run("cache", "keygen", "-o", "key")
        run("prewarm", *what, "--cache", "own", "--cache", address, "--push", "--sign-key", "key", "--trust-key", "key.pub")
        run("cache", "export", "--cache", "own", "-o", "kernels.bundle", "--sign-key", "key")
        trust = ["--trust-key", "key.pub"]
        print("| from | processes | until all have all | kernels | remote | hits | compiled | failed |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for count in (1, arguments.processes):
            row("a remote cache, signed", count, lambda i: ["prewarm", *what, "--json", *trust, "--cache", f"remote{count}-{i}",
                                                            "--cache", address])
            row("a bundle, signed", count, lambda i: ["prewarm", *what, "--json", *trust, "--cache", f"bundle{count}-{i}",
                                                      "--cache", "kernels.bundle"])
        if arguments.compiling:
            row("NVRTC", arguments.compiling, lambda i: ["prewarm", *what, "--json", "--cache", f"compiled-{i}"])
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
