"""Times launches with CUDA events around CUDA graphs, or around plain launches where one cannot be captured.

A launch is all that a provider's call puts on the stream, kernels that share out its work and combine partial results
included; what Provider.make() did before, once for many calls, is not in it.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

GRAPH_MS = 1.0  # what a graph should last, so that its own launch does not count
MOST_LAUNCHES = 256


def event_ms(torch: Any, work: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


class Batch:
    """Launches that go round the calls, as a graph where that can be captured."""

    def __init__(self, torch: Any, calls: List[Callable[[], Any]]) -> None:
        self.torch = torch
        self.calls = calls
        self.graph: Optional[Any] = None
        self.first_output: Any = None
        self.why_not_graph = ""
        self.launches = self._enough(self._estimate_ms())
        self._capture()
        if self.graph is not None:
            # What was eager was bound by Python where launches are short.
            ms = event_ms(torch, self.graph.replay) / self.launches
            if self._enough(ms) > 2 * self.launches:
                self.launches = self._enough(ms)
                self._capture()

    def _enough(self, ms: float) -> int:
        rounds = max(1, int(GRAPH_MS / max(ms, 1e-4) / len(self.calls) + 0.999))
        return min(rounds * len(self.calls), max(len(self.calls), MOST_LAUNCHES))

    def _all(self) -> None:
        for i in range(self.launches):
            self.calls[i % len(self.calls)]()

    def _estimate_ms(self) -> float:
        self.launches = len(self.calls)
        event_ms(self.torch, self._all)
        return event_ms(self.torch, self._all) / self.launches

    def _capture(self) -> None:
        torch = self.torch
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._all()  # whatever is set up at the first launch on a stream
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.first_output = self.calls[0]()
                for i in range(1, self.launches):
                    self.calls[i % len(self.calls)]()
            torch.cuda.synchronize()
            self.graph = graph
        except Exception as error:  # not every provider can be captured
            self.graph, self.first_output = None, None
            self.why_not_graph = str(error).strip().split("\n")[0][:160]
            torch.cuda.synchronize()

    def replay_into_nan(self) -> Any:
        """The first call's output as the graph makes it: a graph that missed the launches leaves NaN."""
        self.first_output.fill_(float("nan"))
        self.graph.replay()  # type: ignore[union-attr]
        self.torch.cuda.synchronize()
        return self.first_output

    def measure_ms(self, seconds: float) -> float:
        """Mean time of one launch over about `seconds`."""
        work = self.graph.replay if self.graph is not None else self._all
        warm = event_ms(self.torch, work)  # wakes the clocks after the others' turn
        times = max(1, int(round(seconds * 1000 / max(warm, 1e-3))))

        def several() -> None:
            for _ in range(times):
                work()

        return event_ms(self.torch, several) / times / self.launches


def ceilings(torch: Any) -> dict:
    """What this card does at best, in this run: a large copy and a large matrix product."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    a, b = (torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    found = {}
    for name, work, amount in (("copy_tbps", lambda: target.copy_(source), 2.0 * source.numel()),
                               ("matmul_bf16_tflops", lambda: torch.matmul(a, b), 2.0 * 8192 ** 3)):
        for _ in range(3):
            work()
        times = sorted(event_ms(torch, work) for _ in range(15))
        found[name] = amount / times[len(times) // 2] / 1e9
    return found
