"""How commands show progress."""

import sys

import pytest

from zeroeventhub.cli import output
from zeroeventhub.cli.output import Meter


def test_progress_is_a_line_now_and_then_in_a_file(capsys, monkeypatch):
    """Where stderr is no terminal, the counter is on a line, some seconds apart."""
    with Meter("landed", 5000) as meter:
        meter.show(999)
        monkeypatch.setattr(output, "PLAIN_INTERVAL", 0.0)
        meter.show(1000)
        meter.say("killed the consumer")
    assert capsys.readouterr().err == "landed 1,000\nkilled the consumer\n"


@pytest.mark.parametrize(("total", "shown"), [(5000, "1000/5000"), (None, "landed")])
def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch, total, shown):
    """A terminal shows the counter with its rate, and how far it is where the end is known."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Meter("landed", total) as meter:
        meter.show(1000)
    text = capsys.readouterr().err
    assert "1,000 events, " in text
    assert (shown in text, "/5000" in text) == (True, total is not None)
