"""What the scripts here have in common that launch attnsmith by themselves."""

import os
import pathlib
import signal
import sys

try:
    import torch
except ImportError:  # help, lists and tests need none
    torch = None


SKIPPED = 77  # the exit code of a script that measured nothing


def is_skipped():
    """Whether nothing can be measured on this machine, after it is said why."""
    if torch is not None and torch.cuda.is_available():
        return False
    print("skipped: " + ("no GPU" if torch is not None else "PyTorch is not installed (pip install torch)"))
    return True


def end_with_reader(main):
    """What main() returns. A reader of its output such as `head` that stops early ends it without a traceback.

    SIGPIPE stays ignored: with its default action a process at the other end of another pipe would end the script, too.
    """
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at the end
        return 128 + signal.SIGPIPE


def import_attnsmith():
    """The package that is installed, or this tree's."""
    try:
        import attnsmith
    except ImportError:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
        import attnsmith
    return attnsmith


def graph_of(calls):
    """A CUDA graph of all of them, one after the other. They are made once before, for what a first launch sets up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    torch.cuda.synchronize()
    return graph
