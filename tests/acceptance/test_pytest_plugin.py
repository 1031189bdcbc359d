"""The fixtures for pytest, the examples that use them, and the guide that shows them."""

import asyncio
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from harness import command_line
from harness.guides import DOCUMENTS, guide
from sqlalchemy import select

import zeroeventhub.pytest_plugin
import zeroeventhub.testing
from zeroeventhub import AsyncConsumer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "testing"
PLUGIN = "zeroeventhub.pytest_plugin"

EVERY_FIXTURE = """
import asyncio
import pytest
from zeroeventhub import FIRST, AsyncConsumer, Consumer, NewEvent
from zeroeventhub.errors import Unavailable
from zeroeventhub.testing import client_of

def apply(connection, page):
    pass

def test_sync(event_feed, feed_client, feed_faults, cursor_store, consumer_pauses):
    event_feed.append("a")
    feed_faults.unavailable(retry_after=20)
    Consumer(feed_client, cursor_store, "c", follow=False).run(apply)
    assert consumer_pauses[0].seconds == 20

def test_async(event_feed, async_feed_client, feed_faults, async_cursor_store, consumer_pauses):
    event_feed.append("a")
    feed_faults.reset()
    asyncio.run(AsyncConsumer(async_feed_client, async_cursor_store, "c", follow=False).run(apply))
    assert len(consumer_pauses) == 1

def test_log(log_feed):
    log_feed.append(NewEvent("order.paid", {"order": 17}))
    assert [event.data for event in client_of(log_feed.feed).fetch(0, FIRST).events]

def test_nothing_is_left(event_feed, feed_faults, consumer_pauses):
    assert (event_feed.head(), feed_faults.pending, consumer_pauses) == (0, 0, [])
"""


def run(folder):
    """Run the tests of a folder in a pytest of its own; return what it prints."""
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", "-W", "error"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = command_line.run(folder, program=command, cwd=folder, env=environment)
    return done.stdout + done.stderr


def test_pytest_finds_the_plugin():
    """Where the package is installed, pytest loads its fixtures, which import nothing of it yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["pytest11"].items()
    assert EntryPoint(name, value, "pytest11").load() is zeroeventhub.pytest_plugin
    code = f"import sys, {PLUGIN}; print({{'sqlalchemy', 'starlette'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_fixtures_are_new_for_each_test(tmp_path):
    """Every fixture does what it says, sync and async, and leaves nothing to the next test."""
    (tmp_path / "test_fixtures.py").write_text(EVERY_FIXTURE)
    assert "4 passed" in run(tmp_path)


@pytest.mark.slow
def test_examples_pass_and_notice_mistakes(tmp_path):
    """The tests of the two small services pass; with a mistake in the handler, they fail."""
    folder = tmp_path / "testing"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    assert "5 passed" in run(folder)
    handler = folder / "billing.py"
    text = handler.read_text()
    mistake = "    connection.execute(invoices.insert()"
    assert mistake in text
    handler.write_text(text.replace(mistake, f"    connection.connection.commit()\n{mistake}"))
    printed = run(folder)
    assert "apply did, so that cursor and effects may have come apart" in printed
    assert "4 failed, 1 passed" in printed


def test_guide_shows_the_examples():
    """The guide's pieces of the examples are theirs, line by line."""
    text = (DOCUMENTS / "testing.md").read_text()
    pieces = re.findall(r"<!-- (examples/testing/\S+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(pieces) == 5
    for path, piece in pieces:
        assert piece in (ROOT / path).read_text(), piece


def test_guide_lists_every_name():
    """Every public name, and every fixture, is in the guide."""
    text = (DOCUMENTS / "testing.md").read_text()
    fixtures = re.findall(
        r"^def (\w+)", Path(zeroeventhub.pytest_plugin.__file__).read_text(), re.MULTILINE
    )
    assert len(fixtures) == 8
    names = set(zeroeventhub.testing.__all__) - {"MemoryFeed"}  # feed_of makes it
    assert [name for name in sorted({*fixtures, *names}) if name not in text] == []


def test_async_piece_of_the_guide_runs():
    """The piece for asyncio does what it says."""
    billing = runpy.run_path(str(EXAMPLE / "billing.py"))
    names = ("customers", "invoice", "tables")
    given = {**vars(zeroeventhub.testing), **{name: billing[name] for name in names}}
    given |= {"AsyncConsumer": AsyncConsumer, "select": select}
    with guide("testing.md", **given) as piece:
        asyncio.run(piece("asyncio")["test_invoices"]())
