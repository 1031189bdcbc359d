"""The guide to appending over HTTP: its pieces, its command and its example."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from harness.appended import ids
from harness.command_line import PATIENCE, invoke
from harness.guides import DOCUMENTS, block, guide, typed
from harness.readers import client_of
from harness.stores import new_store
from harness.written import writable

import zeroeventhub
from zeroeventhub import Event, EventLog, NewEvent

ADDRESS = "http://127.0.0.1:8000/events"
EXAMPLE = DOCUMENTS.parent / "examples" / "appender.py"


@pytest.fixture
def written(sqlite, empty_folder):
    """A log and its URL, in an empty folder."""
    with writable(sqlite) as (log, url, _):
        yield log, url


@pytest.mark.slow
def test_example_appends_its_readings(written, sqlite, tmp_path):
    """The example appends a thousand readings in their order."""
    log, url = written
    program = tmp_path / "appender.py"
    program.write_text(EXAMPLE.read_text().replace(ADDRESS, url))
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"The log has \d+ batches\.\n", done.stdout)
    assert ids(sqlite, log) == [f"cellar-{number}" for number in range(1000)]


def test_client_and_command_append(written, sqlite, capsys):
    """The client's piece prints where its event is, and the command appends the lines shown."""
    log, url = written
    with guide("append.md", {ADDRESS: url}) as piece:
        piece("client")
    partition, appended = capsys.readouterr().out.split()
    assert (int(partition) in range(8), appended) == (True, ids(sqlite, log)[0])
    Path("events.ndjson").write_text(block("append.md", "events"))
    (_, *words), said = typed("append.md", "command")
    shown = invoke(*(word.replace(ADDRESS, url) for word in words))
    assert (shown.exit_code, shown.stderr) == (0, said)
    assert ids(sqlite, log)[1:] == ["attic-1", "attic-2"]


def test_effects_and_events_are_of_one_transaction(written, tmp_path):
    """A handler's events are in the log of its database once, also if its page is applied again."""
    _, url = written
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'alarms.db'}")
    inserts = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def fail_once(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO alarms"):
            inserts.append(statement)
            if len(inserts) == 2:
                raise KeyError

    with client_of(url) as client:
        client.append(
            [NewEvent("measured", {"celsius": celsius}, key="cellar") for celsius in range(20)]
        )
        given = {
            "Connection": sa.Connection,
            "Consumer": partial(zeroeventhub.Consumer, follow=False),
            "Event": Event,
            "EventLog": EventLog,
            "NewEvent": NewEvent,
            "client": client,
            "engine": engine,
            "metadata": sa.MetaData(),
            "store": new_store(engine),
        }
        with guide("append.md", **given) as piece:
            alarms = piece("effects")["alarms"]
        with engine.connect() as connection:
            rows = connection.execute(sa.select(alarms.table.c.data)).scalars().all()
    assert rows == [{"celsius": celsius} for celsius in (16, 17, 18, 19)]
    assert len(inserts) > 4
