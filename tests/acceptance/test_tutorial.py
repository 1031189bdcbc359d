"""The tutorial runs by one command, and what it tells is what its text shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial"


@pytest.mark.test_all
def test_tutorial_ends_with_the_truth(tmp_path):
    """With fewer orders it tells the story of its README, and fails nowhere on the way."""
    run = subprocess.run(
        [sys.executable, TUTORIAL / "run.py", "40"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    text = (TUTORIAL / "README.md").read_text()
    shown = re.search(r"```console\n(.*?)```", text, re.DOTALL)[1]

    def shape(story):
        return re.sub(r"\d+", "0", story)

    assert shape(run.stdout) == shape(shown)
    assert list(tmp_path.iterdir()) == []


def test_text_names_every_file():
    """Each file of the tutorial is in its table."""
    text = (TUTORIAL / "README.md").read_text()
    assert {file.name for file in TUTORIAL.glob("*.py")} == set(
        re.findall(r"^\| \[(\w+\.py)\]", text, re.MULTILINE)
    )
