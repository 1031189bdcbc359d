"""The guide to rows that change: each way to make events of changes works as it stands."""

import runpy
import shlex
import sqlite3
from contextlib import closing
from functools import partial

import httpx
import pytest
from harness import guides
from harness.command_line import invoke, started
from harness.guides import DOCUMENTS, guide
from harness.readers import client_of
from harness.statements import execute
from harness.web import serving

from zeroeventhub import FIRST


def data(feed):
    """Return the data of all events of a feed with one partition."""
    return [event.data for event in feed.read(0, FIRST, 100).events]


def test_change_and_event_are_committed_together(empty_folder):
    """An order is paid once, with its event, and a change that fails leaves no event."""
    with guide("changes.md") as piece:
        names = piece("same")
        engine, pay, feed = (names[name] for name in ("engine", "pay", "feed"))
        execute(engine, names["orders"].insert().values(id=17, state="placed"))
        pay(17, 12)
        for order in (17, 18):
            with pytest.raises(ValueError, match="cannot be paid"):
                pay(order, 12)
        assert data(feed.bind(engine)) == [{"order": 17, "amount": 12}]


block = partial(guides.block, "changes.md")


def words(mark):
    """Return the words of a command of the guide, without its program and what it feeds."""
    program, *rest = shlex.split(block(mark).splitlines()[0].removeprefix("$ ").partition(" | ")[0])
    assert program == "zeroeventhub"
    return rest


@pytest.fixture
def shop(empty_folder):
    """A function that runs a script in the guide's database."""
    with closing(sqlite3.connect("shop.db")) as connection:
        yield connection.executescript


def test_command_captures_changes(shop):
    """The command's script, the changes and the feed are those of the guide, and check agrees."""
    shop(block("tables"))
    shop(invoke(*words("capture")).stdout)
    shop(block("change"))
    with started(*words("serve"), "--port", "0") as process:
        feed = process.stdout.readline().removeprefix("Feed: ").strip()
        command, *shown = block("read").splitlines()
        url = shlex.split(command)[2].replace("http://127.0.0.1:8000/changes", feed)
        assert httpx.get(url).text.splitlines()[:-1] == shown
    found = invoke(*words("check"))
    assert "ok       capture     The changes of 'person' are captured." in found.stdout
    shop("ALTER TABLE person ADD COLUMN age INTEGER")
    assert "do not know age: run" in invoke(*words("check")).stdout
    shop(invoke(*words("capture"), "--uninstall").stdout)
    found = invoke(*words("check"))
    assert (found.exit_code, "'person' are not captured" in found.stdout) == (1, True)


def test_example_captures_changes(empty_folder):
    """The example publishes what it captures, and starts again as it is."""
    for _ in range(2):
        names = runpy.run_path(str(DOCUMENTS.parent / "examples" / "capture.py"))
        execute(names["engine"], names["person"].insert().values(name="ada"))
        with serving(names["app"]) as url, client_of(f"{url}/changes") as client:
            found = [event.data["data"]["after"]["id"] for event in client.fetch(0, FIRST).events]
        names["engine"].dispose()
    assert found == [1, 2]
