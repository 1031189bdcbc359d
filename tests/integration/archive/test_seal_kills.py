"""Whoever seals, trims or erases is killed, wherever it is: nothing is lost or repeated."""

import pytest
from harness.archives import s3_store
from harness.log import LOG, Log
from harness.ordering_table import ALL, SEQUENCED_SQLITE
from harness.sealed import (
    create_until_killed,
    erase,
    erase_until_killed,
    move,
    move_until_killed,
    opened,
    source,
)

from zeroeventhub.archive.objects import Objects

EVENTS = 5
EVERY = {"folder": 17, "s3": 31}
"""How many points lie between two at which whoever seals is killed."""

STORES = [(SEQUENCED_SQLITE, "folder"), (SEQUENCED_SQLITE, "s3")]
CELLS = [*STORES, *((case, "folder") for case in ALL if case != SEQUENCED_SQLITE)]


def beginning(cells):
    """Run a test for histories of some orderings, with archives of some kinds."""
    names = [f"{case.ordering}-{case.database}-{kind}" for case, kind in cells]
    return pytest.mark.parametrize("history", cells, ids=names, indirect=True)


@pytest.fixture
def history(request, tmp_path):
    """The history of a log, with an archive."""
    case, kind = request.param
    store = s3_store(request.getfixturevalue("s3_url")) if kind == "s3" else tmp_path / "archive"
    return History(Log(request.getfixturevalue(case.database), case), kind, store)


class History:
    """Know all pages that there ever were of a log.

    Args:
        log: the log, in an empty database.
        kind: of the store.
        store: what its archive is in.
    """

    def __init__(self, log, kind, store):
        LOG.metadata.create_all(log.engine)
        self.log = log
        self.kind = kind
        self.store = store
        self.url = log.engine.url.render_as_string(hide_password=False)
        self.cursors = ["1-0"]
        with log.engine.begin() as connection:
            source(log.ordering, opened(store)).install(connection)

    def keeper(self):
        """Return the feed and its archive, as a new process has them."""
        archive = opened(self.store)
        return source(self.log.ordering, archive).bind(self.log.engine), archive

    def write(self, number):
        """Append events, and remember the cursors behind the newest."""
        self.log.write(*range(number, number + EVENTS))
        page = self.keeper()[0].read(0, self.cursors[-1], 1000, each=True)
        assert [event.data["n"] for event in page.events] == [*range(number, number + EVENTS)]
        self.cursors = ["1-0", *self.cursors[-EVENTS:], *page.cursors]

    def pages(self):
        """Read what lies behind every cursor, in pages of the feed's bytes."""
        feed, _ = self.keeper()
        return [feed.read_pages(0, cursor, 40, 100) for cursor in self.cursors]

    def numbers(self):
        """Return the numbers of all events."""
        return [event.data["n"] for event in self.keeper()[0].read(0, "1-0", 10_000).events]


def test_killed_at_every_point_of_creating_a_file(tmp_path):
    """A file is whole as soon as it is seen, whatever is left beside it."""
    at, found, killed = 0, [], True
    while killed:
        at += 1
        folder = tmp_path / str(at)
        killed = create_until_killed(folder, "segments/one", b"whole", at)
        store = Objects(folder)
        found.append([store.read(f"segments/{name}") for name in store.names("segments")])
        store.create("segments/one", b"other")
        assert store.names("segments") == ["one"]
    assert found.count([]) > 4
    assert found.count([b"whole"]) > 1
    assert len(found) == found.count([]) + found.count([b"whole"])


@beginning(CELLS)
def test_killed_at_every_point_of_sealing_and_trimming(history):
    """Before and behind every statement, commit, file and object: each cursor has the same bytes
    behind it as before, whoever reads, and the next one goes on.
    """
    at, written, kills, killed = 1, 0, 0, True
    while killed:
        history.write(written)
        written += EVENTS
        before = history.pages()
        killed = move_until_killed(history.url, history.log.ordering, history.store, at)
        kills += killed
        assert history.pages() == before
        move(*history.keeper())
        assert history.pages() == before
        assert history.numbers() == [*range(written)]
        assert history.log.count("SELECT count(*) FROM log") <= 1
        at += EVERY[history.kind]
    assert kills > 5


@beginning(STORES)
def test_killed_at_every_point_of_erasing(history):
    """What is erased is there or gone, and nothing else is touched; the next one finishes."""
    for number in range(0, 50, EVENTS):
        history.write(number)
    feed, archive = history.keeper()
    feed.seal(segment_events=10)
    move(feed, archive)
    at, left, kills, killed = 1, [*range(50)], 0, True
    while killed:
        number = left[len(left) // 2]
        others = [one for one in left if one != number]
        ids = [str(number + 1)]
        killed = erase_until_killed(history.url, history.log.ordering, history.store, ids, at)
        kills += killed
        assert history.numbers() in (left, others)
        erase(*history.keeper(), ids)
        assert history.numbers() == others
        files = {
            name.partition(".")[0] for name, _ in opened(history.store).objects.ages("segments")
        }
        assert len(files) == len(history.keeper()[1].look().segments)
        left = others
        at += 5
    assert kills > 8
