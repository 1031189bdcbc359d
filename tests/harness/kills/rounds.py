"""Terminated connections, restarted servers, lost replies and frozen workers, round by round."""

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from harness.clusters import Cluster
from harness.faults.findings import Findings
from harness.kills.proxy import CommitProxy
from harness.kills.scene import ENDLESS, Scene
from harness.kills.ways import Life

PATIENCE = 300
"""Seconds that a consumer may take to get over something."""

TAKING_OVER = 20
"""Seconds after which whoever could take over is held up by a lock."""

SHARE = 0.3
"""Of all COMMITs, how many meet a fate."""

AHEAD = 60
"""Events of a partition that may have been fetched before the end was told."""


def terminations(scene: Scene, life: Life, *, events: int) -> Findings:
    """Let the server end the consumer's connections, again and again, at points that dice choose.

    Args:
        scene: where it happens.
        life: of the consumer, which ends at the head.
        events: how many of a partition there are to read meanwhile.
    """
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
    """Restart the database under a consumer that follows.

    Args:
        scene: where it happens.
        life: of the consumer.
        cluster: the server.
        times: how often.
        dice: choose how, and how long the server then lives.
    """
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
    """Let consumers of one name, which nobody has heard of, start in nearly the same moment.

    Args:
        scene: where it happens; its script says where they start.
        lives: of the consumers, which end at the head.
        events: how many of a partition there are to read.
        dice: choose how much later than the other each starts.
    """
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
    """Reset a consumer that waits at the head, where nothing new comes, and see it start again.

    Args:
        scene: where it happens.
        life: of the consumer, which follows.
        events: how many of a partition there are.
    """
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
    """Freeze a worker until another has taken over and come to the end, or waits for it.

    Args:
        scene: where it happens.
        life: of both; the first is frozen at its point.
        events: how many of a partition there are to read.
    """
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
