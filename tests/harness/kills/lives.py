"""How consumers live while they are tormented: the way, what they read, and their options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.kills.scene import Scene
from harness.kills.script import PLAIN, Script
from harness.kills.ways import Life
from zeroeventhub import Failures


@dataclass(frozen=True)
class Kind:
    """Say how a consumer lives, wherever that is.

    Attributes:
        way: what it does between its start and its end.
        page: how many points there are from a page's arrival until it is committed, or some more.
        script: what it reads.
        options: of the consumer.
    """

    way: str
    page: int
    script: Script = PLAIN
    options: Mapping[str, Any] = field(default_factory=dict)

    def points(self, most: int) -> range:
        """Return the points of a page, or as many of them as asked for, up to the last one."""
        step = -(-self.page // most)
        return range(1 + (self.page - 1) % step, self.page + 1, step)

    def life(self, scene: Scene, *, options: Mapping[str, Any] | None = None, **named: Any) -> Life:
        """Say how it lives in a scene, and what else is to be said of it there."""
        return scene.life(self.way, options={**self.options, **(options or {})}, **named)


_SET_ASIDE = {"failures": Failures(tries=1, then="set-aside")}
_HOLD_BACK = {"failures": Failures(tries=1, then="set-aside", hold_back=True)}

KINDS = {
    "loop, commit first": Kind("loop, commit first", 20),
    "loop, effects first": Kind("loop, effects first", 20),
    "async loop": Kind("async loop", 40),
    "run": Kind("run", 24),
    "async run": Kind("async run", 110),
    "run, set aside": Kind("run, event by event", 70, Script(poison=True), _SET_ASIDE),
    "async run, set aside": Kind("async run", 260, Script(poison=True), _SET_ASIDE),
    "run, held back": Kind("run", 70, Script(stubborn=True), _HOLD_BACK),
    "run, inbox": Kind("run, event by event", 40, Script(repeats=True)),
    "run, lanes": Kind("run", 50, options={"lanes": 3}),
    "async run, lanes": Kind("async run, event by event", 150, options={"lanes": 2}),
}
"""Ways of living that differ in what a transaction holds."""
