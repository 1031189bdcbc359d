"""Where consumers are tormented: a feed over real HTTP, a database, and a process that forks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.faults.findings import Findings
from harness.kills.lives import End, Life, Zygote
from harness.kills.points import arguments
from harness.kills.script import Ledger, Script, ScriptedFeed
from harness.web import serving
from zeroeventhub import Failures, feed_routes

ENDLESS = 10**6  # more events than any consumer here can read


class Scene:
    """Hold a feed, its consumer's database, and the process that forks the consumers."""

    def __init__(self, mother: Zygote, ledger: Ledger, feed: ScriptedFeed, address: str) -> None:
        self.mother = mother
        self.ledger = ledger
        self.feed = feed
        self.address = address
        self.found = Findings()

    def life(self, way: str, **named: Any) -> Life:
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
        for complaint in self.ledger.complaints(lanes=lanes):
            self.complain(f"{where}: {complaint}")

    def look_at_end(self, life: Life) -> None:
        """Look whether all that the feed has is there, once."""
        self.look(life, "at the end")
        if not self.is_at_end():
            self.complain(f"came to {self.counts()} of {self.feed.end}")

    def counts(self) -> dict[int, int]:
        return self.ledger.state()[0]

    def is_at_end(self) -> bool:
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

    def life(self, scene: Scene, *, options: Mapping[str, Any] | None = None, **named: Any) -> Life:
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
