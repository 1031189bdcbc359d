"""The guide to schemas: its examples run, and its commands say what it shows."""

import re
import runpy
import shlex
import sys
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import httpx
import jsonschema
import pytest
from harness.command_line import PATIENCE, invoke, started
from harness.guides import DOCUMENTS, block
from harness.readers import client_of
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, inspect, text

from zeroeventhub import FIRST

pytestmark = pytest.mark.usefixtures("empty_folder")

EXAMPLES = DOCUMENTS.parent / "examples/schemas"
ADDRESS = "http://127.0.0.1:8000"
BILLED = [(1, 12, "EUR", str(date(2026, 3, 1))), (2, 7.5, "NOK", None)]


def console(mark):
    """Return the lines of a console in the guide."""
    return block("schemas.md", mark).splitlines()


def carry_out(line, address):
    """Run a command of the guide at a publisher; return its result."""
    program, *words = shlex.split(line.removeprefix("$ ").replace(ADDRESS, address))
    assert program == "zeroeventhub"
    to_file = Path(words[-1]) if ">" in words else None
    result = invoke(*(words[:-2] if to_file else words))
    assert result.stderr == ""
    if to_file:
        to_file.write_text(result.stdout)
    return result


@contextmanager
def publisher(**other):
    """Run the example of a publisher, with other words in its code; yield its address."""
    program = Path("publisher.py")
    code = (EXAMPLES / program).read_text()
    for word, instead in other.items():
        code = re.sub(rf"\b{word}\b", instead, code)
    program.write_text(code)
    names = runpy.run_path(program, run_name="__main__")
    with serving(names["app"]) as address:
        yield address
    names["engine"].dispose()


def invoices():
    """Read what the example of a consumer has written."""
    engine = create_engine("sqlite:///billing.db")
    with engine.begin() as connection:
        known = inspect(connection).has_table("invoices")
        query = text("SELECT * FROM invoices ORDER BY number")
        rows = connection.execute(query).all() if known else []
    engine.dispose()
    return [tuple(row) for row in rows]


def test_consumer_bills_by_the_models_that_codegen_writes():
    """The consumer applies a union of types, and old events as present ones, to their end."""
    with publisher() as address:
        (command,) = console("codegen")
        assert carry_out(command, address).exit_code == 0
        code = (EXAMPLES / "consumer.py").read_text()
        Path("consumer.py").write_text(code.replace(ADDRESS, address))
        with started("consumer.py", program=[sys.executable]) as process:
            until(lambda: process.poll() is not None or invoices() == BILLED, "it bills", PATIENCE)
            process.terminate()
            assert process.wait(timeout=PATIENCE) == 0, process.stderr.read()
    assert invoices() == BILLED


def test_event_leads_to_its_schema():
    """The dataschema of each event is the address of the schema of its data."""
    with publisher() as address, client_of(f"{address}/orders") as client:
        events = client.fetch(0, FIRST).events
        for event in events:
            found = httpx.get(event.data["dataschema"].replace(ADDRESS, address))
            jsonschema.validate(event.data["data"], found.json())
    assert len(events) == 3


def test_change_is_found_as_the_guide_shows():
    """The commands of the guide find a member that was renamed."""
    *commands, breaks, fits = console("diff")
    with publisher() as address:
        assert carry_out(commands[0], address).exit_code == 0
    with publisher(expected="arrives") as address:
        result = carry_out(commands[1], address)
    assert (result.exit_code, result.stdout) == (1, f"{breaks}\n{fits}\n")
