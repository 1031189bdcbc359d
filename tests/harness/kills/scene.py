"""Where consumers are tormented: a feed over real HTTP, a database, and a process that forks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.faults.findings import Findings
from harness.kills.connecting import arguments
from harness.kills.ledger import Ledger
from harness.kills.script import Script, ScriptedFeed
from harness.kills.ways import Life
from harness.kills.zygote import End, Zygote
from harness.web import serving
from zeroeventhub import feed_routes

ENDLESS = 10**6
"""More events than anybody here can read."""

REHEARSAL = 9
"""Events of a partition that are enough to show all that a consumer does with them."""


class Scene:
    """Hold a feed, its consumer's database, and who forks the consumers.

    Args:
        mother: forks the consumers.
        ledger: where they write.
        feed: what they read.
        address: the URL of the feed.

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
    """Set a scene up.

    Args:
        mother: forks the consumers.
        url: an empty database.
        script: what is published.
    """
    feed = ScriptedFeed(script, ENDLESS)
    # Its connections are ended, too, when those of the consumers are.
    engine = create_engine(url, connect_args=arguments(url), pool_pre_ping=True)
    application = Starlette(routes=feed_routes("/script", feed))
    try:
        with serving(application) as address:
            yield Scene(mother, Ledger(engine, script), feed, f"{address}/script")
    finally:
        engine.dispose()
