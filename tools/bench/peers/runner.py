"""Goes through the cases: providers are added, then timed in turn in rounds. Knows nothing of torch."""

from __future__ import annotations

import concurrent.futures
import queue
import time
from statistics import median
from typing import Any, Callable, Dict, Hashable, Iterable, List, Optional, Sequence, Tuple

from .cases import Case
from .pace import FIRST_GUESS
from .providers import OURS, PROVIDERS
from .statistics import best_peer, is_peer, ratio, spread
from .worker import Worker, WorkerDied

SHARED = "shared"  # the worker of all providers that have none of their own
START_SECONDS = 20.0
ANSWER_LIMIT = 120.0

Build = Tuple[str, Hashable]  # a provider, and what of a case its kernels are compiled for


def estimate_seconds(turns: int, seconds: float, compile_seconds: float) -> float:
    """A guess at the whole run: building kernels is taken to use all of its limit."""
    return START_SECONDS + compile_seconds + turns * (FIRST_GUESS + seconds)


def turns(names: Sequence[str], number: int) -> List[str]:
    """The order of round `number`: each comes first, and follows each neighbour, as often as the others.

    Where power is the limit a provider finds the clock that the one before it left.
    """
    at = number // 2 % max(1, len(names))
    order = list(names[at:]) + list(names[:at])
    return order[::-1] if number % 2 else order


def in_turns(builds: Iterable[Build]) -> List[Build]:
    """A provider's turn each: those that take longest are not left to the end."""
    counts: Dict[str, int] = {}
    order = []
    for build in builds:
        counts[build[0]] = counts.get(build[0], 0) + 1
        order.append((counts[build[0]], build))
    order.sort(key=lambda item: item[0])
    return [build for _, build in order]


class Runner:
    def __init__(self, providers: List[str], isolate: List[str], seconds: float, rounds: int,
                 compile_seconds: float, jobs: int, say: Callable[[str], None],
                 start_worker: Callable[[], Any] = Worker, own_sets: Sequence[str] = (),
                 rest: float = 0.0) -> None:
        self.providers = providers
        self.alone = {name for name in providers if name in isolate}
        self.seconds = seconds
        self.rounds = rounds
        self.compile_seconds = compile_seconds
        self.jobs = jobs
        self.say = say
        self.start_worker = start_worker
        self.own_sets = own_sets
        self.rest = rest
        self.workers: Dict[str, Any] = {}
        # Kernels that could not be built: not tried again for every case.
        self.unbuilt: Dict[Build, Dict[str, Any]] = {}

    def contenders(self, case: Case) -> List[str]:
        return [name for name in self.providers if not is_peer(name, OURS) or case.set not in self.own_sets]

    def serving(self, case: Case) -> List[str]:
        """The contenders that do not refuse it beforehand."""
        return [name for name in self.contenders(case) if not PROVIDERS[name].refuses(case)]

    def turns_of(self, cases: Sequence[Case]) -> int:
        """How many measurements there will be, but for what is refused only when tried."""
        return sum(len(self.serving(case)) for case in cases)

    def place(self, provider: str) -> str:
        return provider if provider in self.alone else SHARED

    def worker(self, place: str) -> Any:
        if place not in self.workers:
            self.workers[place] = self.start_worker()
        return self.workers[place]

    def start(self, cases: Sequence[Case]) -> None:
        """All workers that these cases need, at once: each imports PyTorch and makes a context."""
        self.worker(SHARED)
        for place in dict.fromkeys(self.place(name) for case in cases for name in self.serving(case)):
            self.worker(place)

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
        builds = self.needed_builds(cases)
        if not builds:
            return
        started = time.monotonic()
        waiting: "queue.SimpleQueue[Build]" = queue.SimpleQueue()
        for build in in_turns(builds):
            waiting.put(build)
        deadline = started + self.compile_seconds
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for each in [pool.submit(self.build_some, waiting, builds, deadline)
                         for _ in range(min(self.jobs, len(builds)))]:
                each.result()
        self.say("built kernels of %d kinds in %.0f s, %d could not be built" % (
            len(builds), time.monotonic() - started, len(self.unbuilt)))

    def needed_builds(self, cases: List[Case]) -> Dict[Build, Case]:
        """Each with the smallest case that needs it."""
        smallest: Dict[Build, Case] = {}
        for name in self.providers:
            if not PROVIDERS[name].compiles:
                continue
            for case in cases:
                if name not in self.serving(case):
                    continue
                build = (name, PROVIDERS[name].compile_key(case))
                if build not in smallest or case.bytes < smallest[build].bytes:
                    smallest[build] = case
        return smallest

    def build_some(self, waiting: "queue.SimpleQueue[Build]", builds: Dict[Build, Case], deadline: float) -> None:
        """One after the other in one process: importing a package takes as long as some kernels do."""
        worker = None
        try:
            while True:
                build = waiting.get_nowait()
                if time.monotonic() >= deadline:
                    self.unbuilt[build] = {"status": "timeout", "reason": "no time was left to compile it"}
                    continue
                worker = worker or self.start_worker()
                try:
                    self.build_one(worker, build, builds[build], deadline)
                except WorkerDied as error:
                    self.unbuilt[build] = {"status": error.status, "reason": "while compiling: %s" % error}
                    worker = None
        except queue.Empty:
            pass
        finally:
            if worker is not None:
                worker.close(at_once=True)

    def build_one(self, worker: Any, build: Build, case: Case, deadline: float) -> None:
        worker.ask("begin", max(0.1, deadline - time.monotonic()), case=case.to_json())
        answer = worker.ask("add", max(0.1, deadline - time.monotonic()), provider=build[0], build_only=True)
        if answer["status"] == "failed":
            self.unbuilt[build] = answer

    def run(self, case: Case) -> Dict[str, Any]:
        results: Dict[str, Dict[str, Any]] = {}
        contenders = self.contenders(case)
        for name in contenders:
            refusal = PROVIDERS[name].refuses(case)
            unbuilt = None
            if PROVIDERS[name].compiles and not refusal:
                unbuilt = self.unbuilt.get((name, PROVIDERS[name].compile_key(case)))
            if refusal:
                results[name] = {"status": "refused", "reason": refusal}
            elif unbuilt:
                results[name] = dict(unbuilt)
        while True:
            waiting = [name for name in contenders if name not in results]
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
        for number in range(self.rounds):
            for name in turns(timed, number):
                time.sleep(self.rest)
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
