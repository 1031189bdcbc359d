"""Where consumers are tormented: a feed over real HTTP, a database, and a process that forks."""

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.clusters import Cluster
from harness.faults.findings import Findings
from harness.kills.lives import PATIENCE, End, Life, Zygote
from harness.kills.points import arguments
from harness.kills.proxy import CommitProxy
from harness.kills.script import Ledger, Script, ScriptedFeed
from harness.web import serving
from zeroeventhub import Failures, feed_routes

ENDLESS = 10**6
"""More events than any consumer here can read."""

REHEARSAL = 9
"""Events of a partition that are enough to show all that a consumer does with them."""

REST = 9
"""Events that are left for the last consumer, which is not killed."""

AHEAD = 60
"""Events of a partition that may have been fetched before the end was known."""

TAKING_OVER = 20
"""Seconds after which a worker that could take over is held up by a lock."""

SHARE = 0.3
"""Of all COMMITs, how many meet a fate."""


class Scene:
    """Hold a feed, its consumer's database, and the process that forks the consumers."""

    def __init__(self, mother: Zygote, ledger: Ledger, feed: ScriptedFeed, address: str) -> None:
        self.mother = mother
        self.ledger = ledger
        self.feed = feed
        self.address = address
        self.found = Findings()

    def life(self, way: str, **named: Any) -> Life:
        """Say how a consumer lives here."""
        database = self.ledger.engine.url.render_as_string(hide_password=False)
        return Life(way, database, self.address, self.feed.script, **named)

    def begin(self, end: int) -> None:
        """Start from nothing, with a feed of so many events in a partition."""
        self.ledger.clear()
        self.feed.end = end
        self.found = Findings()

    def look(self, life: Life, where: str = "") -> None:
        """Look whether cursors and effects are of one moment."""
        lanes = life.options.get("lanes", 1) > 1
        for complaint in self.ledger.complaints(self.ledger.state(), lanes=lanes):
            self.complain(f"{where}: {complaint}")

    def look_at_end(self, life: Life) -> None:
        """Look whether all that the feed has is there, once."""
        self.look(life, "at the end")
        if not self.is_at_end():
            self.complain(f"came to {self.counts()} of {self.feed.end}")

    def counts(self) -> dict[int, int]:
        """Return how many events are before the cursor, by partition."""
        return dict(self.ledger.state().counts)

    def is_at_end(self) -> bool:
        """Tell whether all events are before the cursors."""
        return self.counts() == dict.fromkeys(range(self.feed.script.partitions), self.feed.end)

    def end_soon(self, events: int) -> None:
        """Let the feed end so many events behind the cursor that has come furthest."""
        self.feed.end = max([0, *self.counts().values()]) + events

    def hear(self, end: End) -> End:
        """Take note of how a consumer ended that was to end well."""
        if end.error or end.killed:
            self.complain(f"a consumer was ended by {end.signal or end.error}")
        return end

    def complain(self, complaint: str) -> None:
        """Write down that something is wrong."""
        self.found.complaints.append(complaint)


@contextmanager
def scene(mother: Zygote, url: str, script: Script) -> Iterator[Scene]:
    """Set a scene up."""
    feed = ScriptedFeed(script, ENDLESS)
    # Its connections are ended, too, when those of the consumers are.
    engine = create_engine(url, connect_args=arguments(url), pool_pre_ping=True)
    application = Starlette(routes=feed_routes("/script", feed))
    try:
        with serving(application) as address:
            yield Scene(mother, Ledger(engine, script), feed, f"{address}/script")
    finally:
        engine.dispose()


@dataclass(frozen=True)
class Kind:
    """Say how a consumer lives, and how many points a page of its takes at most."""

    way: str
    page: int
    script: Script = field(default_factory=Script)
    options: Mapping[str, Any] = field(default_factory=dict)

    def points(self, most: int) -> range:
        """Return the points of a page, or as many of them as asked for, up to the last one."""
        step = -(-self.page // most)
        return range(1 + (self.page - 1) % step, self.page + 1, step)

    def life(self, scene: Scene, *, options: Mapping[str, Any] | None = None, **named: Any) -> Life:
        """Say how it lives in a scene, and what else is to be said of it there."""
        return scene.life(self.way, options={**self.options, **(options or {})}, **named)


_SET_ASIDE = {"failures": Failures(tries=1, then="set-aside")}

KINDS = {
    "loop": Kind("loop", 20),
    "async loop": Kind("async loop", 20),
    "loop, replaced": Kind("loop", 60, Script(replaced=True)),
    "run": Kind("run", 24),
    "async run": Kind("async run", 24),
    "run, replaced": Kind("run", 60, Script(replaced=True)),
    "run, set aside": Kind("run, event by event", 70, Script(poison=True), _SET_ASIDE),
    "run, inbox": Kind("run, event by event", 40, Script(repeats=True)),
    "run, lanes": Kind("run", 50, options={"lanes": 3}),
    "async run, lanes": Kind("async run, event by event", 50, options={"lanes": 2}),
}
"""Ways of living that differ in what a transaction holds."""


def pursue(scene: Scene, life: Life, strikes: Iterable[Mapping[str, Any]]) -> Findings:
    """Kill one consumer after the other, and let a last one come to the end."""
    scene.begin(REHEARSAL)
    scene.mother.rehearse(life)
    scene.begin(ENDLESS)
    for strike in strikes:
        end = scene.mother.run(replace(life, **strike))
        if end.killed:
            scene.found.counts["kill"] += 1
        else:
            scene.complain(f"{strike}: it ended before; {end.error}")
        scene.look(life, str(strike))
        scene.ledger.expire()
        if scene.found.complaints:
            return scene.found
    scene.end_soon(REST)
    scene.hear(scene.mother.run(life))
    scene.look_at_end(life)
    return scene.found


def each_point(points: Iterable[int], *, fetched: bool) -> list[Mapping[str, Any]]:
    """Kill at these points of a life, one after the other."""
    return [{"strike_at": at, "fetched": fetched} for at in points]


def by_dice(
    dice: random.Random, count: int, *, last: int, seconds: float
) -> Iterator[Mapping[str, Any]]:
    """Kill at points and moments that dice choose."""
    for _ in range(count):
        if dice.random() < 0.5:
            yield {"strike_at": dice.randint(1, last), "fetched": dice.random() < 0.5}
        else:
            yield {"alarm": dice.uniform(0.001, seconds)}


def terminations(scene: Scene, life: Life, *, events: int) -> Findings:
    """Let the server end the consumer's connections at points that dice choose, again and again."""
    scene.begin(events)
    end = scene.hear(scene.mother.run(replace(life, strike="terminate", hurried=True)))
    scene.look_at_end(life)
    scene.found.counts["termination"] += end.strikes
    return scene.found


def lost_commits(scene: Scene, life: Life, *, events: int, seed: str) -> Findings:
    """Cut the line around COMMITs, before or behind which dice choose."""
    scene.begin(events)
    proxy = CommitProxy(life.database, seed, SHARE)
    with proxy.listening() as url:
        scene.hear(scene.mother.run(replace(life, database=url, hurried=True)))
    scene.look_at_end(life)
    scene.found.counts += proxy.fates
    return scene.found


def restarts(
    scene: Scene, life: Life, cluster: Cluster, *, times: int, dice: random.Random
) -> Findings:
    """Restart the database under a consumer that follows."""
    scene.begin(ENDLESS)
    pid = scene.mother.start(life)
    for _ in range(times):
        before = _await_progress(scene, 0)
        cluster.restart(mode := dice.choice(["fast", "immediate"]))
        scene.found.counts[f"{mode} restart"] += 1
        scene.look(life)
        _await_progress(scene, before)
        time.sleep(dice.uniform(0, 0.1))
        if scene.found.complaints:
            break
    scene.end_soon(AHEAD)
    _await_progress(scene, scene.feed.script.partitions * scene.feed.end - 1)
    os.kill(pid, signal.SIGTERM)
    scene.hear(scene.mother.wait(pid))
    scene.look_at_end(life)
    return scene.found


def _await_progress(scene: Scene, beyond: int) -> int:
    """Wait until more events than these are behind the cursors; return how many."""
    ending = time.monotonic() + PATIENCE
    while (done := sum(scene.counts().values())) <= beyond:
        if time.monotonic() > ending:
            scene.complain(f"stuck at {done}")
            break
        time.sleep(0.01)
    return done


def starts(scene: Scene, lives: Sequence[Life], *, events: int, dice: random.Random) -> Findings:
    """Let consumers of one new name start in nearly the same moment."""
    scene.begin(events)
    pids = []
    for life in lives:
        pids.append(scene.mother.start(life))
        time.sleep(dice.choice([0, dice.uniform(0, 0.01)]))
    for pid in pids:
        scene.hear(scene.mother.wait(pid))
    scene.look_at_end(lives[0])
    scene.found.counts["start"] += len(lives)
    return scene.found


def zombie(scene: Scene, life: Life, *, events: int) -> Findings:
    """Freeze a worker until another has taken over and come to the end, or waits for it."""
    scene.begin(events)
    first = scene.mother.start(replace(life, strike="freeze"))
    end = scene.mother.wait(first)
    if not end.stopped:
        scene.hear(end)
        scene.complain("it came to the end before it was to be frozen")
        return scene.found
    second = scene.mother.start(replace(life, strike_at=None))
    # It takes over when the lease has run out, unless the frozen one holds a lock that it needs: in
    # SQLite none does at a point, but by chance the thread that renews leases.
    free = scene.ledger.engine.dialect.name == "sqlite"
    ending = time.monotonic() + (TAKING_OVER if free else 2 * life.options["lease"] + 1)
    while (over := scene.mother.poll(second)) is None and time.monotonic() < ending:
        time.sleep(0.01)
    scene.found.counts["waited for" if over is None else "taken over"] += 1
    if over is not None:
        scene.look_at_end(life)
    os.kill(first, signal.SIGCONT)
    scene.hear(scene.mother.wait(first))
    scene.hear(over or scene.mother.wait(second))
    scene.look_at_end(life)
    return scene.found
