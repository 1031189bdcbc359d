"""Where consumers are tormented: a feed over real HTTP, a database, and a process that forks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.faults.findings import Findings
from harness.kills.connecting import arguments
from harness.kills.ledger import Ledger
from harness.kills.script import PLAIN, Script, ScriptedFeed
from harness.kills.ways import Life
from harness.kills.zygote import End, Zygote
from harness.web import serving
from zeroeventhub import Failures, feed_routes

ENDLESS = 10**6
"""More events than anybody here can read."""

REHEARSAL = 9
"""Events of a partition that are enough to show all that a consumer does with them."""


class Scene:
    """Hold a feed, its consumer's database, and who forks the consumers.

    Attributes:
        found: what was done here and found.
    """

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

    def rehearse(self, life: Life) -> None:
        """Let the one who forks live such a life to the end of a short feed."""
        self.begin(REHEARSAL)
        self.mother.rehearse(life)

    def look(self, life: Life, where: str = "") -> None:
        """Look whether cursors and effects are of one moment."""
        lanes = life.options.get("lanes", 1) > 1
        for complaint in self.ledger.complaints(self.ledger.state(), lanes=lanes):
            self.complain(f"{where}: {complaint}" if where else complaint)

    def look_at_end(self, life: Life) -> None:
        """Look whether all that the feed has is there, once."""
        self.look(life, "at the end")
        state = self.ledger.state()
        if state.counts != self.due:
            self.complain(f"came to {dict(state.counts)} of {self.feed.end}")

    @property
    def due(self) -> dict[int, int]:
        """By partition, how many events have to be behind the cursor in the end."""
        return dict.fromkeys(range(self.feed.script.partitions), self.feed.end)

    def hear(self, end: End) -> None:
        """Take note of how a consumer ended that was to end well."""
        if end.error or end.killed:
            self.complain(f"a consumer was ended by {end.signal or end.error}")

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
