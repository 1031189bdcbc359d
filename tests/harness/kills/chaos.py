"""Several workers of one consumer, frozen, killed and restarted at random, for as long as asked."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.faults.findings import Findings
from harness.kills.lives import PATIENCE, Life
from harness.kills.scene import AHEAD, ENDLESS, Scene

DEEDS = {"freeze": signal.SIGSTOP, "kill": signal.SIGKILL, "leave": signal.SIGTERM}
MISCHIEF = ("freeze", "freeze", "freeze", "kill", "leave")

ENDS = {"": (), "kill": (signal.SIGKILL,), "leave": (None, signal.SIGTERM)}
"""How a life may end, by what was done to end it; a newborn does not listen yet."""


@dataclass
class _Worker:
    """Hold a place of work: the life that is led there, and what is about to happen to it."""

    life: Life
    pid: int = 0
    asked: str = ""
    frozen_until: float = 0.0
    absent_until: float = 0.0


class Chaos:
    """Let several workers of one consumer loose, and torment them."""

    def __init__(self, scene: Scene, lives: Sequence[Life], *, seed: int) -> None:
        self._scene = scene
        self._dice = random.Random(seed)
        self._workers = [_Worker(life) for life in lives]
        self._lease = lives[0].options["lease"]

    def run(self, seconds: float) -> Findings:
        """Torment for so many seconds, then let them come to the end, and leave."""
        scene = self._scene
        scene.begin(ENDLESS)
        self._mind()
        ending = time.monotonic() + seconds
        found = scene.found
        while not found.complaints and (
            time.monotonic() < ending or not found.counts.keys() & DEEDS
        ):
            self._mind()
            if self._dice.random() < 0.5:
                self._do(self._dice.choice(MISCHIEF), self._dice.choice(self._workers))
            self._look()
            time.sleep(self._dice.random() * 0.2)
        for worker in self._workers:
            worker.frozen_until = worker.frozen_until and 1e-9
            worker.absent_until = 0.0
        self._mind()
        if not found.complaints:
            scene.end_soon(AHEAD)
            self._mind_until(scene.is_at_end)
            scene.look_at_end(self._workers[0].life)
        self._dismiss()
        return found

    def _do(self, deed: str, worker: _Worker) -> None:
        if not worker.pid or worker.frozen_until or worker.asked:
            return
        self._scene.found.counts[deed] += 1
        os.kill(worker.pid, DEEDS[deed])
        if deed == "freeze":
            seconds = self._dice.uniform(0, 3 * self._lease)
            worker.frozen_until = time.monotonic() + seconds
        else:
            worker.asked = deed

    def _mind(self, *, replacing: bool = True) -> None:
        """Thaw what has been frozen long enough, and let the next one come for what has gone."""
        now = time.monotonic()
        for worker in self._workers:
            if worker.frozen_until and now > worker.frozen_until:
                os.kill(worker.pid, signal.SIGCONT)
                worker.frozen_until = 0.0
            elif worker.pid:
                self._bury(worker)
            elif replacing and now > worker.absent_until:
                worker.pid = self._scene.mother.start(worker.life)

    def _mind_until(self, condition: Callable[[], bool], *, replacing: bool = True) -> None:
        ending = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < ending:
            self._mind(replacing=replacing)
            time.sleep(0.03)

    def _bury(self, worker: _Worker) -> None:
        """Take note of a life that has ended."""
        end = self._scene.mother.poll(worker.pid)
        if end is None or end.stopped:
            return
        if end.error or end.signal not in ENDS[worker.asked]:
            after = worker.asked or "nothing"
            self._scene.complain(f"a worker, after {after}, ended by {end.signal}: {end.error}")
        worker.pid = 0
        worker.asked = ""
        worker.absent_until = time.monotonic() + self._dice.uniform(0, 2 * self._lease)

    def _look(self) -> None:
        """Look at the database, unless a frozen worker keeps all others from it."""
        frozen = any(worker.frozen_until for worker in self._workers)
        if frozen and self._scene.ledger.engine.dialect.name == "sqlite":
            return
        self._scene.look(self._workers[0].life)

    def _dismiss(self) -> None:
        """Ask all workers to leave, and wait until they have."""
        for worker in self._workers:
            if worker.pid and not worker.asked:
                os.kill(worker.pid, signal.SIGTERM)
                worker.asked = "leave"
        self._mind_until(lambda: not any(one.pid for one in self._workers), replacing=False)
        for worker in self._workers:
            if worker.pid:
                self._scene.complain("a worker does not leave")
                os.kill(worker.pid, signal.SIGKILL)
        self._look()
        if (held := self._scene.ledger.held()) and not self._scene.found.complaints:
            self._scene.complain(f"leases were not given back: {held}")
