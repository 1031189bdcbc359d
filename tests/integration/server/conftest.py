"""What tests of the server share."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.readers import Book, Numbers, Watcher
from harness.shop import fill


@pytest.fixture
def shop(sqlite):
    """An engine of a database with ten orders."""
    return fill(sqlite)


@pytest.fixture
def empty_shop(sqlite):
    """An engine of a database with an empty table of orders."""
    return fill(sqlite, 0)


@pytest.fixture
def feed():
    """A feed of one event."""
    return Numbers(1)


@pytest.fixture
def book():
    """A feed of pages with one event each."""
    return Book()


@pytest.fixture
def watcher():
    """What sees how many wait."""
    return Watcher()


@pytest.fixture
def pool():
    """Threads to ask in."""
    with ThreadPoolExecutor(12) as threads:
        yield threads


@pytest.fixture
def records(caplog):
    """A function that returns what the feed has logged since it was last called."""
    caplog.set_level("DEBUG", "zeroeventhub")

    def records():
        found = [one for one in caplog.records if one.name.startswith("zeroeventhub")]
        caplog.clear()
        return found

    return records
