"""The first ten minutes go as the guide says."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from harness import guides
from harness.command_line import PATIENCE, address_of, started
from harness.guides import DOCUMENTS, guide
from harness.operated import carry_out
from harness.waiting import until

GUIDE = "first_ten_minutes.md"
ROOT = DOCUMENTS.parent
ADDRESS = "http://127.0.0.1:8000"


typed = partial(guides.typed, GUIDE)


def command(mark, address):
    """Run a command of zeroeventhub as the guide shows it; return what it prints and is shown."""
    line, shown = guides.block(GUIDE, mark).split("\n", 1)
    return carry_out(line, {ADDRESS: address}), shown


def invoices():
    """Count the invoices; there are none before there is a table."""
    with closing(sqlite3.connect("billing.db", timeout=PATIENCE)) as connection:
        known = connection.execute("SELECT name FROM sqlite_master").fetchall()
        if ("invoices",) not in known:
            return 0
        return connection.execute("SELECT count(*) FROM invoices").fetchone()[0]


@pytest.fixture
def address(empty_folder):
    """Where the guide's publisher listens, beside the examples as a checkout has them."""
    words, _ = typed("publish")
    (empty_folder / "examples").symlink_to(ROOT / "examples")
    with started("-m", *words, "--port", "0", program=[sys.executable]) as process:
        yield address_of(process)


def test_first_ten_minutes(address, tmp_path, capsys):
    """Orders are appended, read, and billed once by a consumer that is killed; then the commands
    say what the guide shows.
    """
    (python, example), _ = typed("consume")
    assert python == "python"
    program = Path("consumer.py")
    program.write_text(Path(example).read_text().replace(ADDRESS, address))
    with guide(GUIDE) as piece:
        piece("append")
        words, shown = typed("read")
        curl = [word.replace(ADDRESS, address) for word in (*words, "--silent")]
        assert subprocess.run(curl, capture_output=True, text=True, check=True).stdout == shown
        said, shown = command("discover", address)
        assert said == shown

        with started(program, program=[sys.executable]):
            until(lambda: invoices() == 2, "it bills", PATIENCE)
        piece("invoices")
    assert capsys.readouterr().out == "[('ada', 12), ('bob', 7.5)]\n"
    said, shown = command("lag", address)
    assert said == shown
    said, shown = command("horizon", address)
    assert said == shown
    assert "error" not in command("check", address)[0]
