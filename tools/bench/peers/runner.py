"""Goes through the cases: providers are added, then timed in turn in rounds. Knows nothing of torch."""

from __future__ import annotations

import concurrent.futures
import time
from statistics import median
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

from .cases import Case
from .providers import OURS, PROVIDERS
from .statistics import best_peer, ratio, spread
from .worker import Worker, WorkerDied

SHARED = "shared"  # the worker of all providers that have none of their own
START_SECONDS = 20.0
CASE_SECONDS = 0.3  # inputs and reference
ADD_SECONDS = 0.12  # a provider's first call, check and graph
ANSWER_LIMIT = 120.0


def estimate_seconds(cases: List[Case], providers: List[str], seconds: float, compile_seconds: float) -> float:
    """A guess at the whole run: building kernels is taken to use all of its limit."""
    compiling = any(PROVIDERS[name].compiles for name in providers)
    each = CASE_SECONDS + len(providers) * (ADD_SECONDS + seconds)
    return START_SECONDS + (compile_seconds if compiling else 0.0) + len(cases) * each


class Runner:
    def __init__(self, providers: List[str], isolate: List[str], seconds: float, rounds: int,
                 compile_seconds: float, jobs: int, say: Callable[[str], None],
                 start_worker: Callable[[], Any] = Worker) -> None:
        self.providers = providers
        self.alone = {name for name in providers if name in isolate}
        self.seconds = seconds
        self.rounds = rounds
        self.compile_seconds = compile_seconds
        self.jobs = jobs
        self.say = say
        self.start_worker = start_worker
        self.workers: Dict[str, Any] = {}
        # Kernels that could not be built: not tried again for every case.
        self.unbuilt: Dict[Tuple[str, Hashable], Dict[str, Any]] = {}

    def place(self, provider: str) -> str:
        return provider if provider in self.alone else SHARED

    def worker(self, place: str) -> Any:
        if place not in self.workers:
            self.workers[place] = self.start_worker()
        return self.workers[place]

    def describe(self) -> Dict[str, Any]:
        return self.worker(SHARED).ask("describe", ANSWER_LIMIT, providers=self.providers)

    def ceilings(self) -> Dict[str, float]:
        return self.worker(SHARED).ask("ceilings", ANSWER_LIMIT)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def build(self, cases: List[Case]) -> None:
        """Builds all kernels that are compiled at run time, side by side, within one limit of time."""
        smallest: Dict[Tuple[str, Hashable], Case] = {}
        for name in self.providers:
            if not PROVIDERS[name].compiles:
                continue
            for case in cases:
                if PROVIDERS[name].refuses(case):
                    continue
                key = (name, PROVIDERS[name].compile_key(case))
                if key not in smallest or case.bytes < smallest[key].bytes:
                    smallest[key] = case
        if not smallest:
            return
        # A provider's turn each: those that take longest are not left to the end.
        turns: Dict[str, int] = {}
        order = []
        for key in smallest:
            turns[key[0]] = turns.get(key[0], 0) + 1
            order.append((turns[key[0]], key))
        order.sort(key=lambda item: item[0])
        deadline = time.monotonic() + self.compile_seconds

        def build_one(key: Tuple[str, Hashable]) -> None:
            case = smallest[key]
            left = deadline - time.monotonic()
            if left <= 0:
                self.unbuilt[key] = {"status": "timeout", "reason": "no time was left to compile it"}
                return
            worker = self.start_worker()
            try:
                worker.ask("begin", left, case=case.to_json())
                answer = worker.ask("add", max(0.1, deadline - time.monotonic()), provider=key[0], build_only=True)
                if answer["status"] == "failed":
                    self.unbuilt[key] = answer
            except WorkerDied as error:
                self.unbuilt[key] = {"status": error.status, "reason": "while compiling: %s" % error}
            finally:
                worker.close(at_once=True)

        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(build_one, [key for _, key in order]))
        self.say("built kernels of %d kinds in %.0f s, %d could not be built" % (
            len(smallest), time.monotonic() - started, len(self.unbuilt)))

    def run(self, case: Case) -> Dict[str, Any]:
        results: Dict[str, Dict[str, Any]] = {}
        for name in self.providers:
            refusal = PROVIDERS[name].refuses(case)
            unbuilt = None
            if PROVIDERS[name].compiles and not refusal:
                unbuilt = self.unbuilt.get((name, PROVIDERS[name].compile_key(case)))
            if refusal:
                results[name] = {"status": "refused", "reason": refusal}
            elif unbuilt:
                results[name] = dict(unbuilt)
        while True:
            waiting = [name for name in self.providers if name not in results]
            try:
                results.update(self._measure(case, waiting))
                break
            except Culprit as died:
                # The others of its process lost what they had: the case starts again without it.
                results[died.provider] = {"status": died.status, "reason": str(died)}
                self.say("%s %s: %s" % (died.provider, died.status, died))
                self.workers.pop(self.place(died.provider), None)
                self.alone.add(died.provider)
        return summary(case, results)

    def _measure(self, case: Case, providers: List[str]) -> Dict[str, Dict[str, Any]]:
        found: Dict[str, Dict[str, Any]] = {}
        began: List[str] = []
        for name in providers:
            place = self.place(name)
            try:
                if place not in began:
                    self.worker(place).ask("begin", ANSWER_LIMIT, case=case.to_json())
                    began.append(place)
                found[name] = self.worker(place).ask("add", ANSWER_LIMIT, provider=name)
            except WorkerDied as error:
                raise Culprit(name, error) from error
        timed = [name for name in providers if found[name]["status"] == "ok"]
        times: Dict[str, List[float]] = {name: [] for name in timed}
        for _ in range(self.rounds):
            for name in list(timed):
                try:
                    answer = self.worker(self.place(name)).ask("round", ANSWER_LIMIT, provider=name,
                                                               seconds=self.seconds / self.rounds)
                except WorkerDied as error:
                    raise Culprit(name, error) from error
                if "ms" in answer:
                    times[name].append(answer["ms"])
                else:
                    found[name] = answer
                    timed.remove(name)
        for name in timed:
            found[name]["ms"] = times[name]
        for place in began:
            try:
                self.worker(place).ask("end", ANSWER_LIMIT)
            except WorkerDied:  # after its times were taken
                self.workers.pop(place, None)
        return found


class Culprit(Exception):
    """A worker died while it served this provider."""

    def __init__(self, provider: str, error: WorkerDied) -> None:
        super().__init__(str(error))
        self.provider = provider
        self.status = error.status


def summary(case: Case, results: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
    """The case with its results, speeds and ratio, as the JSON has it."""
    ms: Dict[str, float] = {}
    for name, result in results.items():
        if result["status"] != "ok":
            continue
        ms[name] = median(result["ms"])
        result.update(median_ms=ms[name], min_ms=min(result["ms"]), max_ms=max(result["ms"]),
                      spread=spread(result["ms"]), tflops=case.flops / ms[name] / 1e9,
                      tbps=case.bytes / ms[name] / 1e9)
    best: Optional[Tuple[str, float]] = best_peer(ms, OURS)
    return {"set": case.set, "name": case.name, "case": case.to_json(), "flops": case.flops, "bytes": case.bytes,
            "tolerance": case.tolerance, "results": results, "best_peer": best[0] if best else None,
            "ratio": ratio(ms, OURS)}
