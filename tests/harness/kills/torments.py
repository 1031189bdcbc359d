"""What is done to consumers again and again, and where: a feed over HTTP, and a database."""

import random
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.faults.account import Findings
from harness.kills.lives import End, Life, Process
from harness.kills.script import Ledger, Script, ScriptedFeed
from harness.web import listening, serving
from sqlalchemy import URL, create_engine, make_url
from starlette.applications import Starlette

from zeroeventhub import Failures, feed_routes

ENDLESS = 10**6  # more events than any consumer here can read


@dataclass
class Scene:
    """Hold a feed, its consumer's database, and the consumers that were started."""

    ledger: Ledger
    feed: ScriptedFeed
    address: str
    found: Findings = field(default_factory=Findings)
    started: list[Process] = field(default_factory=list)

    def start(self, life: Life) -> Process:
        process = Process(life)
        self.started.append(process)
        return process

    def run(self, life: Life) -> End:
        end = self.start(life).end()
        self.close()
        return end

    def close(self) -> None:
        """End what still lives."""
        while self.started:
            self.started.pop().close()

    def begin(self, end: int) -> None:
        """Start from nothing, with a feed of so many events in a partition."""
        self.close()
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
        counts = self.counts()
        if counts != dict.fromkeys(range(self.feed.script.partitions), self.feed.end):
            self.complain(f"came to {counts} of {self.feed.end}")

    def counts(self) -> dict[int, int]:
        return self.ledger.state()[0]

    def hear(self, end: End) -> End:
        """Take note of how a consumer ended that was to end well."""
        if end.error or end.signal:
            self.complain(f"a consumer was ended by {end.signal or end.error}")
        return end

    def complain(self, complaint: str) -> None:
        self.found.complaints.append(complaint)


@contextmanager
def scene(url: str, script: Script) -> Iterator[Scene]:
    """Set a scene up."""
    feed = ScriptedFeed(script, ENDLESS)
    # Its connections are ended, too, when those of the consumers are.
    engine = create_engine(url, pool_pre_ping=True)
    application = Starlette(routes=feed_routes("/script", feed))
    try:
        with serving(application) as address:
            here = Scene(Ledger(engine, script), feed, f"{address}/script")
            try:
                yield here
            finally:
                here.close()
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
        database = scene.ledger.engine.url.render_as_string(hide_password=False)
        options = {**self.options, **(options or {})}
        return Life(self.way, database, scene.address, scene.feed.script, options=options, **named)


_SET_ASIDE = {"failures": Failures(tries=1, then="set-aside")}

KINDS = {
    "loop": Kind("loop", 20),
    "async loop": Kind("async loop", 20),
    "loop, replaced": Kind("loop", 60, Script(replaced=True)),
    "run": Kind("run", 50),
    "async run": Kind("async run", 50),
    "run, replaced": Kind("run", 60, Script(replaced=True)),
    "run, set aside": Kind("run, event by event", 130, Script(poison=True), _SET_ASIDE),
    "run, inbox": Kind("run, event by event", 50, Script(repeats=True)),
    "run, lanes": Kind("run", 60, options={"lanes": 3}),
    "async run, lanes": Kind("async run, event by event", 60, options={"lanes": 2}),
}
"""Ways of living that differ in what a transaction holds."""


Database = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, and drops it when its user is done."""

EARLY = 100  # points of a life until it has pages, or some more
LEFT = 9  # events that are left for the last consumer, which is not killed
SHARE = 0.3  # of all COMMITs, how many meet a fate
DAY = 86_400.0
ALL = ("postgresql", "mariadb", "sqlite")
SERVERS = ("postgresql", "mariadb")


LATEST = 10  # seconds that a database takes for a COMMIT, at most
PORTS = {"postgresql": 5432, "mariadb": 3306, "mysql": 3306}


@contextmanager
def cutting_commits(
    url: str, dice: random.Random, share: float
) -> Iterator[tuple[str, Counter[str]]]:
    """Cut the line to a database around a share of the COMMITs; yield its URL, and what happens."""
    upstream, fates = make_url(url), Counter[str]()

    def fate_of(data: bytes) -> str | None:
        if b"COMMIT" not in data or dice.random() >= share:
            return None
        fate = dice.choice(["request lost", "reply lost"])
        fates[fate] += 1
        return fate

    def forward(ours: socket.socket) -> None:
        with _connected(upstream) as theirs:
            other = {ours: theirs, theirs: ours}
            while True:
                for speaker in select.select([*other], [], [])[0]:
                    data = speaker.recv(65536)
                    fate = fate_of(data) if speaker is ours else None
                    if not data or fate == "request lost":
                        return
                    other[speaker].sendall(data)
                    if fate == "reply lost":
                        select.select([theirs], [], [], LATEST)
                        return

    with listening(forward) as address:
        through = upstream.difference_update_query(["host", "port", "unix_socket"])
        through = through.set(host="127.0.0.1", port=urlsplit(address).port)
        if through.get_backend_name() == "postgresql":
            through = through.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        yield through.render_as_string(hide_password=False), fates


def _connected(url: URL) -> socket.socket:
    """Connect to a database as its driver would."""
    port = url.port or PORTS[url.get_backend_name()]
    host = str(url.host or url.query.get("host") or "127.0.0.1")
    path = url.query.get("unix_socket")
    if host.startswith("/"):
        path = str(Path(host) / f".s.PGSQL.{port}")
    if path is None:
        return socket.create_connection((host, port))
    found = socket.socket(socket.AF_UNIX)
    found.connect(str(path))
    return found


def kill(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Kill consumers at their starts, at points of a page and by dice; let a last one go on."""
    early, step, moments = (2, -(-kind.page // 5), 0) if brief else (40, 1, 40)
    strikes: list[dict[str, Any]] = [
        *({"strike_at": at} for at in sorted(dice.sample(range(1, EARLY), early))),
        *({"strike_at": at, "fetched": True} for at in range(kind.page, 0, -step)),
    ]
    strikes += [{"alarm": dice.uniform(0.001, 0.15)} for _ in range(moments)]
    life = kind.life(here)
    here.begin(ENDLESS)
    for strike in strikes:
        end = here.run(replace(life, **strike))
        if end.signal:
            here.found.counts["kill"] += 1
        else:
            here.complain(f"{strike}: it ended before; {end.error}")
        here.look(life, str(strike))
        here.ledger.expire()
        if here.found.complaints:
            return
    here.feed.end = max([0, *here.counts().values()]) + LEFT
    here.hear(here.run(life))
    here.look_at_end(life)
    if here.feed.end <= LEFT:
        here.complain("none of those that were killed had committed anything")


def terminate(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Let the server end the consumer's connections at points that dice choose."""
    here.begin(30 if brief else 300)
    # Some pages have to be committed in between.
    gap = 4 * kind.page
    first, seed = dice.randint(1, gap), str(dice.random())
    strikes = {"strike": "terminate", "strike_at": first, "gap": gap, "most": 300, "seed": seed}
    life = kind.life(here, hurried=True, **strikes)
    end = here.hear(here.run(life))
    here.look_at_end(life)
    here.found.counts["termination"] += end.strikes


def lose_commits(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Cut the line around COMMITs, before or after which dice choose."""
    here.begin(30 if brief else 300)
    life = kind.life(here, hurried=True)
    with cutting_commits(life.database, random.Random(str(dice.random())), SHARE) as (url, fates):
        here.hear(here.run(replace(life, database=url)))
    here.look_at_end(life)
    here.found.counts += fates


def freeze(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Freeze a worker until another takes over, whose clock may be a day off, or waits for it."""
    here.begin(9)
    life = kind.life(here, options={"lease": 0.3})
    first = here.start(replace(life, strike="freeze", strike_at=dice.randint(1, 20), fetched=True))
    if not first.is_frozen():
        here.complain("it came to the end before it was to be frozen")
        return
    second = here.start(replace(life, clock=dice.choice([0, DAY, -DAY])))
    # It takes over when the lease has run out, unless the frozen one holds a lock that it needs.
    over = second.has_ended(2 * life.options["lease"] + 1)
    here.found.counts["taken over" if over else "waited for"] += 1
    if over:
        here.look_at_end(life)
    first.resume()
    for process in (first, second):
        here.hear(process.end())
    here.look_at_end(life)


def start(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Let three consumers of one new name start in nearly the same moment."""
    here.begin(11)
    life = kind.life(here, options={"start": "c5", "lease": 0.3})
    started = []
    for _ in range(3):
        started.append(here.start(life))
        time.sleep(dice.choice([0, dice.uniform(0, 0.01)]))
    for process in started:
        here.hear(process.end())
    here.look_at_end(life)
    here.found.counts["start"] += len(started)


@dataclass(frozen=True)
class Torment:
    """Describe what is done: a row of the report, how much is enough, and what is counted of it."""

    row: str
    name: str
    size: int
    deeds: tuple[str, ...]
    kinds: Mapping[str, Kind]
    databases: tuple[str, ...]
    act: Callable[..., None]

    def round(self, here: Scene, kind: Kind, seed: int, *, brief: bool = False) -> Findings:
        self.act(here, kind, random.Random(seed), brief=brief)
        return here.found


_RUNS = {name: kind for name, kind in KINDS.items() if "run" in name and not kind.script.replaced}
_STARTERS = {
    name: Kind(name, 0, Script(start=5)) for name in ("loop", "async loop", "run", "async run")
}

TORMENTS = (
    Torment("R3", "kills", 27_000, ("kill",), KINDS, ALL, kill),
    Torment("R5", "terminated backends", 20_000, ("termination",), _RUNS, SERVERS, terminate),
    Torment(
        "R5", "lost COMMITs", 5_000, ("reply lost", "request lost"), _RUNS, SERVERS, lose_commits
    ),
    Torment("R7", "zombies", 600, ("taken over", "waited for"), _RUNS, SERVERS, freeze),
    Torment("R7", "simultaneous starts", 3_000, ("start",), _STARTERS, ALL, start),
)
"""What can be done to consumers."""


def tormented(
    torment: Torment,
    database: str,
    new_database: Database,
    *,
    size: int,
    seed: int,
    tell: Callable[[str], None],
) -> Findings:
    """Do it on one database until it is enough, or something is wrong; return how much was done.

    A seed is that of the first round, and after each round `tell` hears how far it is.
    """
    all_found = Findings()
    with ExitStack() as stack:
        scenes: dict[Script, Scene] = {}
        for number, (name, kind) in enumerate(cycle(torment.kinds.items()), seed):
            if all_found.counts["done"] >= size or all_found.complaints:
                break
            if kind.script not in scenes:
                url = stack.enter_context(new_database())
                scenes[kind.script] = stack.enter_context(scene(url, kind.script))
            found = torment.round(scenes[kind.script], kind, number)
            all_found.complaints += [f"{name}, seed {number}: {one}" for one in found.complaints]
            all_found.counts["done"] += sum(found.counts[deed] for deed in torment.deeds)
            tell(f"{torment.name} on {database}: {all_found.counts['done']:,} of {size:,}")
    return all_found
