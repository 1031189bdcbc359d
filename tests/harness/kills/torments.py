"""What is done to consumers, again and again, until it is enough."""

import os
import random
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

from sqlalchemy import URL, make_url

from harness.clusters import Cluster, cluster
from harness.faults.findings import Findings
from harness.kills.lives import PATIENCE, Life, zygote
from harness.kills.scene import AHEAD, ENDLESS, KINDS, Kind, Scene, scene
from harness.kills.script import Script

Database = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, and drops it when its user is done."""

EARLY = 100
"""Points of a life until it has pages, or some more."""

REST = {"postgresql": 0.03, "mariadb": 0.03, "sqlite": 0.005}
"""Seconds that applying takes in chaos, so that databases can have theirs side by side; those who
write to SQLite stand in one queue."""

REHEARSAL = 9
"""Events of a partition that are enough to show all that a consumer does with them."""

LEFT = 9
"""Events that are left for the last consumer, which is not killed."""

TAKING_OVER = 20
"""Seconds after which a worker that could take over is held up by a lock."""

SHARE = 0.3
"""Of all COMMITs, how many meet a fate."""

DAY = 86_400.0
ALL = ("postgresql", "mariadb", "sqlite")
SERVERS = ("postgresql", "mariadb")


LATEST = 10
"""Seconds that a database takes for a COMMIT, at most."""

PORTS = {"postgresql": 5432, "mariadb": 3306, "mysql": 3306}


class CommitProxy:
    """Forward what consumer and database say, and cut the line around a share of the COMMITs."""

    def __init__(self, url: str, seed: str, share: float) -> None:
        self._upstream = make_url(url)
        self._dice = random.Random(seed)
        self._share = share
        self.fates: Counter[str] = Counter()

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Listen in a thread; yield the URL of the database through this proxy."""
        forward = self._forward

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    forward(self.request)

        with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads, server.block_on_close = True, False
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self._through(server.server_address[1])
            finally:
                server.shutdown()
                thread.join(LATEST)

    def _through(self, port: int) -> str:
        url = self._upstream.difference_update_query(["host", "port", "unix_socket"])
        url = url.set(host="127.0.0.1", port=port)
        if url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        return url.render_as_string(hide_password=False)

    def _forward(self, ours: socket.socket) -> None:
        with _connected(self._upstream) as theirs:
            other = {ours: theirs, theirs: ours}
            while True:
                for speaker in select.select([*other], [], [])[0]:
                    data = speaker.recv(65536)
                    fate = self._fate() if speaker is ours and b"COMMIT" in data else None
                    if not data or fate == "request lost":
                        return
                    other[speaker].sendall(data)
                    if fate == "reply lost":
                        select.select([theirs], [], [], LATEST)
                        return

    def _fate(self) -> str | None:
        if self._dice.random() >= self._share:
            return None
        fate = self._dice.choice(["request lost", "reply lost"])
        self.fates[fate] += 1
        return fate


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


DEEDS = {"freeze": signal.SIGSTOP, "kill": signal.SIGKILL, "leave": signal.SIGTERM}
MISCHIEF = ("freeze", "freeze", "freeze", "kill", "leave")

ENDS = {"": (), "kill": (signal.SIGKILL,), "leave": (None, signal.SIGTERM)}
"""How a life may end, by what was done to end it; a newborn does not listen yet."""


@dataclass
class _Worker:
    """Hold a place of work: the life that is led there, and what is about to happen to it."""

    life: Life
    pid: int = 0
    asked: str = ""
    frozen_until: float = 0.0
    absent_until: float = 0.0


class Chaos:
    """Let several workers of one consumer loose, and torment them."""

    def __init__(self, scene: Scene, lives: Sequence[Life], dice: random.Random) -> None:
        self._scene = scene
        self._dice = dice
        self._workers = [_Worker(life) for life in lives]
        self._lease = lives[0].options["lease"]

    def run(self, seconds: float) -> None:
        """Torment for so many seconds, then let them come to the end, and leave."""
        scene = self._scene
        scene.begin(ENDLESS)
        self._mind()
        ending = time.monotonic() + seconds
        found = scene.found
        while not found.complaints and (
            time.monotonic() < ending or not found.counts.keys() & DEEDS
        ):
            self._mind()
            if self._dice.random() < 0.5:
                self._do(self._dice.choice(MISCHIEF), self._dice.choice(self._workers))
            self._look()
            time.sleep(self._dice.random() * 0.2)
        for worker in self._workers:
            worker.frozen_until = worker.frozen_until and 1e-9
            worker.absent_until = 0.0
        self._mind()
        if not found.complaints:
            scene.end_soon(AHEAD)
            self._mind_until(scene.is_at_end)
            scene.look_at_end(self._workers[0].life)
        self._dismiss()

    def _do(self, deed: str, worker: _Worker) -> None:
        if not worker.pid or worker.frozen_until or worker.asked:
            return
        self._scene.found.counts[deed] += 1
        os.kill(worker.pid, DEEDS[deed])
        if deed == "freeze":
            seconds = self._dice.uniform(0, 3 * self._lease)
            worker.frozen_until = time.monotonic() + seconds
        else:
            worker.asked = deed

    def _mind(self, *, replacing: bool = True) -> None:
        """Thaw what has been frozen long enough, and let the next one come for what has gone."""
        now = time.monotonic()
        for worker in self._workers:
            if worker.frozen_until and now > worker.frozen_until:
                os.kill(worker.pid, signal.SIGCONT)
                worker.frozen_until = 0.0
            elif worker.pid:
                self._bury(worker)
            elif replacing and now > worker.absent_until:
                worker.pid = self._scene.mother.start(worker.life)

    def _mind_until(self, condition: Callable[[], bool], *, replacing: bool = True) -> None:
        ending = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < ending:
            self._mind(replacing=replacing)
            time.sleep(0.03)

    def _bury(self, worker: _Worker) -> None:
        end = self._scene.mother.poll(worker.pid)
        if end is None or end.stopped:
            return
        if end.error or end.signal not in ENDS[worker.asked]:
            after = worker.asked or "nothing"
            self._scene.complain(f"a worker, after {after}, ended by {end.signal}: {end.error}")
        worker.pid = 0
        worker.asked = ""
        worker.absent_until = time.monotonic() + self._dice.uniform(0, 2 * self._lease)

    def _look(self) -> None:
        """Look at the database, unless a frozen worker keeps all others from it."""
        frozen = any(worker.frozen_until for worker in self._workers)
        if frozen and self._scene.ledger.engine.dialect.name == "sqlite":
            return
        self._scene.look(self._workers[0].life)

    def _dismiss(self) -> None:
        for worker in self._workers:
            if worker.pid and not worker.asked:
                os.kill(worker.pid, signal.SIGTERM)
                worker.asked = "leave"
        self._mind_until(lambda: not any(one.pid for one in self._workers), replacing=False)
        for worker in self._workers:
            if worker.pid:
                self._scene.complain("a worker does not leave")
                os.kill(worker.pid, signal.SIGKILL)
        self._look()
        if (held := self._scene.ledger.held()) and not self._scene.found.complaints:
            self._scene.complain(f"leases were not given back: {held}")


def kill(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Kill consumers at their starts, at points of a page and by dice; let a last one go on."""
    early, step, moments = (2, -(-kind.page // 5), 0) if brief else (40, 1, 40)
    strikes: list[dict[str, Any]] = [
        *({"strike_at": at} for at in sorted(dice.sample(range(1, EARLY), early))),
        *({"strike_at": at, "fetched": True} for at in range(kind.page, 0, -step)),
    ]
    for _ in range(moments):
        if dice.random() < 0.5:
            at = dice.randint(1, 2 * kind.page)
            strikes.append({"strike_at": at, "fetched": dice.random() < 0.5})
        else:
            strikes.append({"alarm": dice.uniform(0.001, 0.15)})
    life = kind.life(here)
    here.begin(REHEARSAL)
    here.mother.rehearse(life)
    here.begin(ENDLESS)
    for strike in strikes:
        end = here.mother.run(replace(life, **strike))
        if end.killed:
            here.found.counts["kill"] += 1
        else:
            here.complain(f"{strike}: it ended before; {end.error}")
        here.look(life, str(strike))
        here.ledger.expire()
        if here.found.complaints:
            return
    here.end_soon(LEFT)
    here.hear(here.mother.run(life))
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
    end = here.hear(here.mother.run(life))
    here.look_at_end(life)
    here.found.counts["termination"] += end.strikes


def lose_commits(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Cut the line around COMMITs, before or after which dice choose."""
    here.begin(30 if brief else 300)
    life = kind.life(here, hurried=True)
    proxy = CommitProxy(life.database, str(dice.random()), SHARE)
    with proxy.listening() as url:
        here.hear(here.mother.run(replace(life, database=url)))
    here.look_at_end(life)
    here.found.counts += proxy.fates


def freeze(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Freeze a worker until another has taken over and come to the end, or waits for it."""
    here.begin(9)
    life = kind.life(here, options={"lease": 0.3})
    first = here.mother.start(
        replace(life, strike="freeze", strike_at=dice.randint(1, 20), fetched=True)
    )
    end = here.mother.wait(first)
    if not end.stopped:
        here.hear(end)
        here.complain("it came to the end before it was to be frozen")
        return
    second = here.mother.start(life)
    # It takes over when the lease has run out, unless the frozen one holds a lock that it needs: in
    # SQLite none does at a point, but by chance the thread that renews leases.
    free = here.ledger.engine.dialect.name == "sqlite"
    ending = time.monotonic() + (TAKING_OVER if free else 2 * life.options["lease"] + 1)
    while (over := here.mother.poll(second)) is None and time.monotonic() < ending:
        time.sleep(0.01)
    here.found.counts["waited for" if over is None else "taken over"] += 1
    if over is not None:
        here.look_at_end(life)
    os.kill(first, signal.SIGCONT)
    here.hear(here.mother.wait(first))
    here.hear(over or here.mother.wait(second))
    here.look_at_end(life)


def start(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Let three consumers of one new name start in nearly the same moment."""
    here.begin(11)
    life = kind.life(here, options={"start": "c5", "lease": 0.3})
    pids = []
    for _ in range(3):
        pids.append(here.mother.start(life))
        time.sleep(dice.choice([0, dice.uniform(0, 0.01)]))
    for pid in pids:
        here.hear(here.mother.wait(pid))
    here.look_at_end(life)
    here.found.counts["start"] += len(pids)


def chaos(here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Let four workers loose; the database's clock decides, and two of theirs are a day off."""
    seconds = 1 if brief else 60
    options = {"lease": 0.6, "follow": True}
    rest = REST[here.ledger.engine.dialect.name]
    clocks = (0, DAY, -DAY, 0)
    lives = [kind.life(here, rest=rest, clock=clock, options=options) for clock in clocks]
    Chaos(here, lives, dice).run(seconds)
    here.found.counts["second"] = seconds


def restart(server: Cluster, here: Scene, kind: Kind, dice: random.Random, *, brief: bool) -> None:
    """Restart the database under a consumer that follows."""
    life = kind.life(here, rest=0.002, hurried=True, options={"follow": True})
    here.begin(ENDLESS)
    pid = here.mother.start(life)
    for _ in range(4 if brief else 20):
        before = here.await_progress(0)
        server.restart(dice.choice(["fast", "immediate"]))
        here.found.counts["restart"] += 1
        here.look(life)
        here.await_progress(before)
        time.sleep(dice.uniform(0, 0.1))
        if here.found.complaints:
            break
    here.end_soon(AHEAD)
    here.await_progress(here.feed.script.partitions * here.feed.end - 1)
    os.kill(pid, signal.SIGTERM)
    here.hear(here.mother.wait(pid))
    here.look_at_end(life)


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
"""What can be done in any database; `restarting` needs a server of its own."""


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


@contextmanager
def restarting() -> Iterator[tuple[Torment, Database]]:
    """Run a PostgreSQL server that is restarted under consumers, whose database it has."""
    kinds = {name: KINDS[name] for name in ("run", "async run")}
    with cluster() as server:

        @contextmanager
        def new_database() -> Iterator[str]:
            yield server.new_database()

        servers, act = ("postgresql",), partial(restart, server)
        yield Torment("R5", "restarts", 1_000, ("restart",), kinds, servers, act), new_database
