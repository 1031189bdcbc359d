"""Kills, ended connections, restarted servers, lost replies and frozen workers, round by round."""

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.clusters import Cluster
from harness.faults.findings import Findings
from harness.kills.proxy import CommitProxy
from harness.kills.scene import ENDLESS, Scene
from harness.kills.ways import Life

PATIENCE = 60
"""Seconds that a consumer may take to get over something."""

TAKING_OVER = 20
"""Seconds after which whoever could take over is held up by a lock."""

SHARE = 0.3
"""Of all COMMITs, how many meet a fate."""

AHEAD = 60
"""Events of a partition that may have been fetched before the end was told."""


def terminations(scene: Scene, life: Life, *, events: int) -> Findings:
    """Let the server end the consumer's connections at points that dice choose, again and again."""
    scene.begin(events)
    end = scene.mother.run(replace(life, strike="terminate", hurried=True))
    scene.hear(end)
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
        before = await_progress(scene, 0)
        cluster.restart(mode := dice.choice(["fast", "immediate"]))
        scene.found.counts[f"{mode} restart"] += 1
        scene.look(life)
        await_progress(scene, before)
        time.sleep(dice.uniform(0, 0.1))
        if scene.found.complaints:
            break
    scene.feed.end = max(scene.ledger.state().counts.values()) + AHEAD
    due = scene.feed.script.partitions * scene.feed.end
    await_progress(scene, due - 1)
    os.kill(pid, signal.SIGTERM)
    scene.hear(scene.mother.wait(pid))
    scene.look_at_end(life)
    return scene.found


def starts(scene: Scene, lives: Sequence[Life], *, events: int, dice: random.Random) -> Findings:
    """Let consumers of one name, which nobody has heard of, start in nearly the same moment."""
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


def reset_at_head(scene: Scene, life: Life, *, events: int) -> Findings:
    """Reset a consumer that waits at the head, where nothing new comes, and see it start again."""
    scene.begin(events)
    pid = scene.mother.start(life)
    due = scene.feed.script.partitions * events
    await_progress(scene, due - 1)
    scene.ledger.reset()
    scene.found.counts["reset"] += 1
    await_progress(scene, due - 1)
    os.kill(pid, signal.SIGTERM)
    scene.hear(scene.mother.wait(pid))
    scene.look_at_end(life)
    return scene.found


def await_progress(scene: Scene, beyond: int) -> int:
    """Wait until more events than these are behind the cursors; return how many."""
    ending = time.monotonic() + PATIENCE
    while (done := sum(scene.ledger.state().counts.values())) <= beyond:
        if time.monotonic() > ending:
            scene.complain(f"stuck at {done}")
            break
        time.sleep(0.01)
    return done


def zombie(scene: Scene, life: Life, *, events: int) -> Findings:
    """Freeze a worker until another has taken over and come to the end, or waits for it."""
    scene.begin(events)
    lease = life.options["lease"]
    first = scene.mother.start(replace(life, strike="freeze", worker=1))
    end = scene.mother.wait(first)
    if not end.stopped:
        scene.hear(end)
        scene.complain("it came to the end before it was to be frozen")
        return scene.found
    second = scene.mother.start(replace(life, strike_at=None, worker=2))
    # It takes over when the lease has run out, unless the frozen one holds a lock that it needs: in
    # SQLite nobody does at a point, but by chance the thread that renews leases.
    free = scene.ledger.engine.dialect.name == "sqlite"
    ending = time.monotonic() + (TAKING_OVER if free else 2 * lease + 1)
    while (over := scene.mother.poll(second)) is None and time.monotonic() < ending:
        time.sleep(0.01)
    scene.found.counts["waited for" if over is None else "taken over"] += 1
    if over is not None:
        scene.look_at_end(life)
    os.kill(first, signal.SIGCONT)
    thawed = scene.mother.wait(first)
    scene.hear(thawed)
    scene.found.counts["fenced"] += thawed.fenced
    scene.hear(over or scene.mother.wait(second))
    scene.look_at_end(life)
    return scene.found


REST = 9
"""Events that are left for the last consumer, who is not killed."""


@dataclass(frozen=True)
class Strike:
    """Say when a consumer is killed.

    Attributes:
        at: the point; None for none.
        fetched: whether points count only from the first page on.
        alarm: seconds after which it is killed wherever it is; 0 for never.
    """

    at: int | None = None
    fetched: bool = False
    alarm: float = 0.0


def pursue(scene: Scene, life: Life, strikes: Iterable[Strike]) -> Findings:
    """Kill one consumer after the other, and let a last one come to the end."""
    scene.rehearse(life)
    scene.begin(ENDLESS)
    for number, strike in enumerate(strikes, 1):
        how = {"strike_at": strike.at, "fetched": strike.fetched, "alarm": strike.alarm}
        end = scene.mother.run(replace(life, **how))
        where = f"kill {number}, at {strike}"
        if end.killed:
            scene.found.counts["kill"] += 1
        else:
            scene.complain(f"{where}: it ended before; {end.error}")
        scene.look(life, where)
        scene.ledger.expire()
        if scene.found.complaints:
            return scene.found
    scene.feed.end = max([0, *scene.ledger.state().counts.values()]) + REST
    scene.hear(scene.mother.run(life))
    scene.look_at_end(life)
    return scene.found


def each_point(points: Iterable[int], *, fetched: bool) -> list[Strike]:
    """Kill at these points of a life, one after the other."""
    return [Strike(at, fetched=fetched) for at in points]


def by_dice(dice: random.Random, count: int, *, last: int, seconds: float) -> Iterator[Strike]:
    """Kill at points and moments that dice choose."""
    for _ in range(count):
        if dice.random() < 0.5:
            yield Strike(dice.randint(1, last), fetched=dice.random() < 0.5)
        else:
            yield Strike(alarm=dice.uniform(0.001, seconds))
