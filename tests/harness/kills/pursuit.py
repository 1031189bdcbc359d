"""Kill a consumer, look at what it left, let the next one go on from there; and again."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.faults.findings import Findings
from harness.kills.scene import ENDLESS, Scene
from harness.kills.ways import Life

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
    """Kill one consumer after the other, and let a last one come to the end.

    Args:
        scene: where they live.
        life: how.
        strikes: when each is killed.
    """
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
    """Kill at these points of a life, one after the other.

    Args:
        points: the points, from 1.
        fetched: whether they count only from the first page on.
    """
    return [Strike(at, fetched=fetched) for at in points]


def by_dice(dice: random.Random, count: int, *, last: int, seconds: float) -> Iterator[Strike]:
    """Kill at points and moments that dice choose.

    Args:
        dice: choose.
        count: how often.
        last: the last point.
        seconds: the last moment.
    """
    for _ in range(count):
        if dice.random() < 0.5:
            yield Strike(dice.randint(1, last), fetched=dice.random() < 0.5)
        else:
            yield Strike(alarm=dice.uniform(0.001, seconds))
