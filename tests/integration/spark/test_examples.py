"""The example of Spark does what it says."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness.spark import prepare

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(300)]  # Java starts slowly

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark" / "flights.py"


def test_flights_are_in_the_files_once(tmp_path):
    """Spark catches up with the flights and follows; in the end each of them is there, once."""
    prepare()
    command = [sys.executable, str(EXAMPLE), "--flights", "6000"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("caught up with 5,400 departures in ")
    assert lines[-1] == "published 6,000, of which 6,000 are in the files once"
