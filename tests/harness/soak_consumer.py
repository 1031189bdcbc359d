"""Torment consumers for as long as a scoreboard asks, and count."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle

from harness.clusters import Cluster, cluster
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
"""Makes an empty database, and drops it behind its user."""

POINTS = 40
"""Points of a life that dice choose for a kill."""

EARLY = 100
"""Points of a life until it has pages, or some more."""

CHAOS = 60
"""Seconds of a round of chaos."""

REST = {"postgresql": 0.03, "mariadb": 0.03, "sqlite": 0.005}
"""Seconds that applying takes in chaos, so that databases can have theirs side by side; those who
write to SQLite stand in one queue."""

DAY = 86_400.0


@dataclass(frozen=True)
class Torment:
    """Describe what is done to consumers, again and again.

    Attributes:
        row: of the scoreboard.
        name: what is counted.
        size: how much of it is enough, over all databases.
        deeds: what is counted, as the findings call it.
        kinds: of consumers, by name.
        databases: where it can be done.
        round: does it once, by a seed.
    """

    row: str
    name: str
    size: int
    deeds: tuple[str, ...]
    kinds: Mapping[str, Kind]
    databases: tuple[str, ...]
    round: Callable[[Scene, Kind, int], Findings]


@dataclass
class Line:
    """Add up what one torment found on one database.

    Attributes:
        done: how much of what is counted was done.
        found: everything that was done and found.
    """

    done: int = 0
    found: Findings = field(default_factory=Findings)


def _kill(here: Scene, kind: Kind, seed: int) -> Findings:
    dice = random.Random(seed)
    strikes = [
        *each_point(sorted(dice.sample(range(1, EARLY), POINTS)), fetched=False),
        *each_point(kind.points(kind.page), fetched=True),
        *by_dice(dice, POINTS, last=2 * kind.page, seconds=0.15),
    ]
    return pursue(here, kind.life(here), strikes)


def _terminate(here: Scene, kind: Kind, seed: int) -> Findings:
    # Some pages have to be committed in between.
    gap = 4 * kind.page
    life = kind.life(here, strike_at=1 + seed % gap, gap=gap, most=300, seed=str(seed))
    return terminations(here, life, events=300)


def _lose_commits(here: Scene, kind: Kind, seed: int) -> Findings:
    return lost_commits(here, kind.life(here), events=300, seed=str(seed))


def _freeze(here: Scene, kind: Kind, seed: int) -> Findings:
    life = kind.life(here, strike_at=1 + seed % 20, options={"lease": 0.3})
    return zombie(here, life, events=9)


def _start(here: Scene, kind: Kind, seed: int) -> Findings:
    life = kind.life(here, options={"start": "c5", "lease": 0.3})
    return starts(here, [life] * 3, events=11, dice=random.Random(seed))


def _chaos(here: Scene, kind: Kind, seed: int) -> Findings:
    options = {"lease": 0.6, "follow": True}
    rest = REST[here.ledger.engine.dialect.name]
    lives = [
        kind.life(here, rest=rest, clock=clock, options=options) for clock in (0, DAY, -DAY, 0)
    ]
    found = Chaos(here, lives, seed=seed).run(CHAOS)
    found.counts["second"] = CHAOS
    return found


_RUNS = {name: kind for name, kind in KINDS.items() if "run" in name and not kind.script.replaced}
_CROWDS = {
    name: replace(kind, script=replace(kind.script, partitions=5)) for name, kind in _RUNS.items()
}
_STARTERS = {
    name: Kind(name, 0, Script(start=5)) for name in ("loop", "async loop", "run", "async run")
}
_ALL = ("postgresql", "mariadb", "sqlite")
_SERVERS = ("postgresql", "mariadb")

TORMENTS = (
    Torment("R3", "kills", 27_000, ("kill",), KINDS, _ALL, _kill),
    Torment("R5", "terminated backends", 20_000, ("termination",), _RUNS, _SERVERS, _terminate),
    Torment(
        "R5", "lost COMMITs", 5_000, ("reply lost", "request lost"), _RUNS, _SERVERS, _lose_commits
    ),
    Torment("R7", "zombies", 600, ("taken over", "waited for"), _RUNS, _ALL, _freeze),
    Torment("R7", "simultaneous starts", 3_000, ("start",), _STARTERS, _ALL, _start),
    Torment("R7", "seconds of chaos", 3_600, ("second",), _CROWDS, _ALL, _chaos),
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
) -> Line:
    """Do it on one database until it is enough, or until something is wrong.

    Args:
        torment: what to do.
        database: the database's name.
        new_database: makes one.
        size: how much is enough.
        seed: of the first round.
        tell: hears after each round how far it is.
    """
    line = Line()
    with zygote() as mother, ExitStack() as stack:
        scenes: dict[Script, Scene] = {}
        for number, (name, kind) in enumerate(cycle(torment.kinds.items()), seed):
            if line.done >= size or line.found.complaints:
                return line
            if kind.script not in scenes:
                url = stack.enter_context(new_database())
                scenes[kind.script] = stack.enter_context(scene(mother, url, kind.script))
            found = torment.round(scenes[kind.script], kind, number)
            complaints = [f"{name}, seed {number}: {complaint}" for complaint in found.complaints]
            line.found.add(Findings(found.counts, complaints))
            line.done += sum(found.counts[deed] for deed in torment.deeds)
            tell(f"{torment.name} on {database}: {line.done:,} of {size:,}")
    raise AssertionError


def restarted(*, size: int, seed: int, tell: Callable[[str], None]) -> Line:
    """Restart a PostgreSQL server under consumers until it is enough.

    Args:
        size: how much is enough.
        seed: of the first round.
        tell: hears after each round how far it is.
    """
    kinds = {name: KINDS[name] for name in ("run", "async run")}
    with cluster() as server:

        def restart(here: Scene, kind: Kind, seed: int) -> Findings:
            life = kind.life(here, rest=0.002, hurried=True, options={"follow": True})
            return restarts(here, life, server, times=20, dice=random.Random(seed))

        deeds = ("fast restart", "immediate restart")
        torment = Torment("R5", "restarts", size, deeds, kinds, ("postgresql",), restart)
        database = _on(server)
        return tormented(torment, "postgresql", database, size=size, seed=seed, tell=tell)


def _on(server: Cluster) -> Database:
    @contextmanager
    def new_database() -> Iterator[str]:
        yield server.new_database()

    return new_database
