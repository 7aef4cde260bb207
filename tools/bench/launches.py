"""What the scripts here have in common that launch attnsmith by themselves."""

import pathlib
import sys


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
    import torch

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
