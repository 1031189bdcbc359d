"""Several workers of one consumer, frozen, killed and restarted at random, for as long as asked."""

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.faults.findings import Findings
from harness.kills.scene import ENDLESS, Scene
from harness.kills.ways import Life

PATIENCE = 60
"""Seconds that workers who are left alone have to come to the end, where they starve as well."""

AHEAD = 60
"""Events of a partition that may have been fetched before the end was told."""

DEEDS = {"freeze": signal.SIGSTOP, "kill": signal.SIGKILL, "leave": signal.SIGTERM}
MISCHIEF = ("freeze", "freeze", "freeze", "kill", "leave")


@dataclass
class _Worker:
    """Hold a place of work: the life that is led there, and what is about to happen to it.

    Attributes:
        life: how whoever works here lives.
        pid: who works here; 0 for nobody.
        told: what was done to end that life.
        frozen_until: when it is thawed; 0 where it is not frozen.
        absent_until: when the next one comes, where nobody works here.
    """

    life: Life
    pid: int = 0
    told: str = ""
    frozen_until: float = 0.0
    absent_until: float = 0.0


ENDS = {"": (), "kill": (signal.SIGKILL,), "leave": (None, signal.SIGTERM)}
"""How a life may end, by what was done to end it; who has just been born does not listen yet."""


class Chaos:
    """Let several workers of one consumer loose, and torment them."""

    def __init__(self, scene: Scene, lives: Sequence[Life], *, seed: int) -> None:
        self._scene = scene
        self._dice = random.Random(seed)
        self._workers = [_Worker(replace(life, worker=n)) for n, life in enumerate(lives)]
        self._lease = lives[0].options["lease"]

    def run(self, seconds: float) -> Findings:
        """Torment for so many seconds, then let them come to the end, and leave."""
        self._scene.begin(ENDLESS)
        for worker in self._workers:
            worker.pid = self._scene.mother.start(worker.life)
        ending = time.monotonic() + seconds
        found = self._scene.found
        while not found.complaints and (
            time.monotonic() < ending or not found.counts.keys() & DEEDS
        ):
            self._mind_workers()
            if self._dice.random() < 0.5:
                self._do(self._dice.choice(MISCHIEF), self._dice.choice(self._workers))
            self._look()
            time.sleep(self._dice.random() * 0.2)
        self._calm()
        if not self._scene.found.complaints:
            self._await_end()
        self._dismiss()
        return self._scene.found

    def _do(self, deed: str, worker: _Worker) -> None:
        if not worker.pid or worker.frozen_until or worker.told:
            return
        self._scene.found.counts[deed] += 1
        os.kill(worker.pid, DEEDS[deed])
        if deed == "freeze":
            seconds = self._dice.uniform(0, 3 * self._lease)
            worker.frozen_until = time.monotonic() + seconds
        else:
            worker.told = deed

    def _mind_workers(self) -> None:
        """Thaw who has been frozen long enough, and let the next one come for who has gone."""
        now = time.monotonic()
        for worker in self._workers:
            if worker.frozen_until and now > worker.frozen_until:
                os.kill(worker.pid, signal.SIGCONT)
                worker.frozen_until = 0.0
            elif worker.pid:
                self._mind(worker)
            elif now > worker.absent_until:
                worker.pid = self._scene.mother.start(worker.life)

    def _mind(self, worker: _Worker) -> None:
        """Take note of a life that has ended."""
        end = self._scene.mother.poll(worker.pid)
        if end is None or end.stopped:
            return
        if end.error or end.signal not in ENDS[worker.told]:
            self._scene.complain(
                f"worker {worker.life.worker} after {worker.told or 'nothing'} ended by "
                f"{end.signal}: {end.error}"
            )
        worker.pid = 0
        worker.told = ""
        worker.absent_until = time.monotonic() + self._dice.uniform(0, 2 * self._lease)

    def _calm(self) -> None:
        for worker in self._workers:
            worker.frozen_until = worker.frozen_until and 1e-9
            worker.absent_until = 0.0
        self._mind_workers()

    def _look(self) -> None:
        """Look at the database, unless somebody frozen keeps everybody from it."""
        if self._scene.ledger.engine.dialect.name == "sqlite" and any(
            worker.frozen_until for worker in self._workers
        ):
            return
        self._scene.found.counts["look"] += 1
        self._scene.look(self._workers[0].life)

    def _await_end(self) -> None:
        """Let the feed end, and wait until everything of it has been applied."""
        scene = self._scene
        scene.feed.end = max([0, *scene.ledger.state().counts.values()]) + AHEAD
        ending = time.monotonic() + PATIENCE
        while scene.ledger.state().counts != scene.due and time.monotonic() < ending:
            self._mind_workers()
            time.sleep(0.05)
        scene.look_at_end(self._workers[0].life)

    def _dismiss(self) -> None:
        """Tell everybody to leave, and wait until they have."""
        for worker in self._workers:
            if worker.pid and not worker.told:
                os.kill(worker.pid, signal.SIGTERM)
                worker.told = "leave"
        ending = time.monotonic() + PATIENCE
        while any(worker.pid for worker in self._workers) and time.monotonic() < ending:
            for worker in self._workers:
                if worker.pid:
                    self._mind(worker)
            time.sleep(0.02)
        for worker in self._workers:
            if worker.pid:
                self._scene.complain(f"worker {worker.life.worker} does not leave")
                os.kill(worker.pid, signal.SIGKILL)
        self._look()
        held = self._scene.ledger.held()
        if held and not self._scene.found.complaints:
            self._scene.complain(f"leases were not given back: {held}")
