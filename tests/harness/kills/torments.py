"""What is done to consumers, again and again, until it is enough."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle

from harness.clusters import cluster
from harness.faults.findings import Findings
from harness.kills.chaos import Chaos
from harness.kills.lives import zygote
from harness.kills.scene import (
    KINDS,
    Kind,
    Scene,
    by_dice,
    each_point,
    lost_commits,
    pursue,
    restarts,
    scene,
    starts,
    terminations,
    zombie,
)
from harness.kills.script import Script

Database = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, and drops it when its user is done."""

EARLY = 100
"""Points of a life until it has pages, or some more."""

REST = {"postgresql": 0.03, "mariadb": 0.03, "sqlite": 0.005}
"""Seconds that applying takes in chaos, so that databases can have theirs side by side; those who
write to SQLite stand in one queue."""

DAY = 86_400.0
ALL = ("postgresql", "mariadb", "sqlite")
SERVERS = ("postgresql", "mariadb")


def kill(here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
    """Kill at the start, at points of a page, and by dice."""
    dice, count = random.Random(seed), 8 if brief else 40
    strikes = [
        *each_point(sorted(dice.sample(range(1, EARLY), count)), fetched=False),
        *each_point(kind.points(count if brief else kind.page), fetched=True),
        *by_dice(dice, count, last=2 * kind.page, seconds=0.15),
    ]
    return pursue(here, kind.life(here), strikes)


def terminate(here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
    """End connections at points; some pages have to be committed in between."""
    gap = 4 * kind.page
    life = kind.life(here, strike_at=1 + seed % gap, gap=gap, most=300, seed=str(seed))
    return terminations(here, life, events=30 if brief else 300)


def lose_commits(here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
    """Cut the line around COMMITs."""
    return lost_commits(here, kind.life(here), events=30 if brief else 300, seed=str(seed))


def freeze(here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
    """Freeze a worker past its lease."""
    life = kind.life(here, strike_at=1 + seed % 20, options={"lease": 0.3})
    return zombie(here, life, events=9)


def start(here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
    """Start three at once."""
    life = kind.life(here, options={"start": "c5", "lease": 0.3})
    return starts(here, [life] * 3, events=11, dice=random.Random(seed))


def chaos(here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
    """Let four workers loose, of which two have clocks that are a day off."""
    seconds = 4 if brief else 60
    options = {"lease": 0.6, "follow": True}
    rest = REST[here.ledger.engine.dialect.name]
    lives = [
        kind.life(here, rest=rest, clock=clock, options=options) for clock in (0, DAY, -DAY, 0)
    ]
    found = Chaos(here, lives, seed=seed).run(seconds)
    found.counts["second"] = seconds
    return found


@dataclass(frozen=True)
class Torment:
    """Describe what is done: a row of the report, how much is enough, and what is counted of it."""

    row: str
    name: str
    size: int
    deeds: tuple[str, ...]
    kinds: Mapping[str, Kind]
    databases: tuple[str, ...]
    round: Callable[..., Findings]


_RUNS = {name: kind for name, kind in KINDS.items() if "run" in name and not kind.script.replaced}
_CROWDS = {
    name: replace(kind, script=replace(kind.script, partitions=5)) for name, kind in _RUNS.items()
}
_STARTERS = {
    name: Kind(name, 0, Script(start=5)) for name in ("loop", "async loop", "run", "async run")
}

TORMENTS = (
    Torment("R3", "kills", 27_000, ("kill",), KINDS, ALL, kill),
    Torment("R5", "terminated backends", 20_000, ("termination",), _RUNS, SERVERS, terminate),
    Torment(
        "R5", "lost COMMITs", 5_000, ("reply lost", "request lost"), _RUNS, SERVERS, lose_commits
    ),
    Torment("R7", "zombies", 600, ("taken over", "waited for"), _RUNS, ALL, freeze),
    Torment("R7", "simultaneous starts", 3_000, ("start",), _STARTERS, ALL, start),
    Torment("R7", "seconds of chaos", 3_600, ("second",), _CROWDS, ALL, chaos),
)
"""What can be done in any database; `restarted` needs a server of its own."""


def tormented(
    torment: Torment,
    database: str,
    new_database: Database,
    *,
    size: int,
    seed: int,
    tell: Callable[[str], None],
) -> tuple[int, list[str]]:
    """Do it on one database until it is enough, or something is wrong; return how much, and what.

    A seed is that of the first round, and after each round `tell` hears how far it is.
    """
    done, complaints = 0, []
    with zygote() as mother, ExitStack() as stack:
        scenes: dict[Script, Scene] = {}
        for number, (name, kind) in enumerate(cycle(torment.kinds.items()), seed):
            if done >= size or complaints:
                break
            if kind.script not in scenes:
                url = stack.enter_context(new_database())
                scenes[kind.script] = stack.enter_context(scene(mother, url, kind.script))
            found = torment.round(scenes[kind.script], kind, number)
            complaints += [f"{name}, seed {number}: {complaint}" for complaint in found.complaints]
            done += sum(found.counts[deed] for deed in torment.deeds)
            tell(f"{torment.name} on {database}: {done:,} of {size:,}")
    return done, complaints


def restarted(*, size: int, seed: int, tell: Callable[[str], None]) -> tuple[int, list[str]]:
    """Restart a PostgreSQL server under consumers until it is enough."""
    kinds = {name: KINDS[name] for name in ("run", "async run")}
    with cluster() as server:

        def restart(here: Scene, kind: Kind, seed: int) -> Findings:
            life = kind.life(here, rest=0.002, hurried=True, options={"follow": True})
            return restarts(here, life, server, times=20, dice=random.Random(seed))

        @contextmanager
        def new_database() -> Iterator[str]:
            yield server.new_database()

        deeds = ("fast restart", "immediate restart")
        torment = Torment("R5", "restarts", size, deeds, kinds, ("postgresql",), restart)
        return tormented(torment, "postgresql", new_database, size=size, seed=seed, tell=tell)
