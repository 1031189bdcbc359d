"""A command that fails prints one sentence and has an exit code."""

import click
import pytest
from click.testing import CliRunner

from zeroeventhub.cli.commands import commands

NOWHERE = "http://127.0.0.1:1/"
TAIL = ["tail", NOWHERE]
GONE = "postgresql://127.0.0.1:1/shop"
SYNC = ["sync", NOWHERE, "--into", "sqlite:///stray.db", "--table", "t", "--consumer", "c"]
TABLE = ["--database", "{shop}", "--table", "orders"]
CONFORMANCE = ["conformance", NOWHERE]
TRIM = ["trim", *TABLE, "--yes"]
ERASE = ["erase", *TABLE, "--archive", "x", "--erasable"]
LETTERS = ["dead-letters", "list", "--store", "{shop}", "--consumer", "billing"]
LAG = ["lag", NOWHERE, "--store", "{shop}"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["check"], 2, "--database"),
        (["seal", *TABLE], 2, "Give the archive to seal into"),
        (["seal", *TABLE, "--archive", "x", "--repeat", "0s"], 2, "more than zero"),
        (["restore", *TABLE], 2, "Give the archive to restore"),
        (["tidy", *TABLE], 2, "Give the archive to tidy"),
        (["serve", "--archive", "x", "--data", "data"], 2, "--data describes a table"),
        (["serve", "--archive", "x"], 2, "There is no archive here"),
        (ERASE, 2, "Give the events to erase"),
        ([*ERASE, "--event-id", "1"], 2, "There is no archive x."),
        (TRIM, 2, "Say what to trim"),
        ([*TRIM, "--older-than", "soon"], 2, "an age is written as"),
        ([*TRIM, "--older-than", "999999w"], 2, "'--older-than': 999999w ago is before the first"),
        ([*TRIM, "--below", "3"], 2, "has no row of feed 'orders.id'"),
        (["discover", NOWHERE], 1, "cannot be reached"),
        (SYNC, 1, "cannot be reached"),
        ([*TAIL, "-H", "nonsense"], 2, "'Name: value'"),
        ([*TAIL, "-H", "X-Name: ü"], 2, "in printable ASCII"),
        ([*TAIL, "--from", "first", "--since", "2026-01-31T12:00:00Z"], 2, "not both"),
        ([*TAIL, "--since", "noon"], 2, "'--since': a moment is written"),
        ([*TAIL, "--event-type", "a;b"], 2, "semicolons"),
        (CONFORMANCE, 2, "cannot be reached"),
        (["schema", "diff", NOWHERE, NOWHERE], 2, "cannot be reached"),
        (["check", "--database", GONE, "--table", "orders"], 2, "The database refused"),
        (["horizon", "--database", GONE, "--table", "orders"], 1, "The database refused"),
        ([*CONFORMANCE, "--only", "nonsense"], 2, "'nonsense'"),
        ([*LAG, "--consumer", "typo"], 2, "no consumer 'typo'; it has billing"),
        ([*LAG, "--consumer", "billing"], 1, "cannot be reached"),
        (["cursors", "list", "--store", "{missing}"], 2, "There is no database file"),
        (["cursors", "list", "--store", "{empty}"], 2, "has no table zeroeventhub_cursors"),
        ([*LETTERS, "--partition", 2**15], 2, "'--partition': 32768 is not in the range"),
        ([*LETTERS, "--limit", 2**63], 2, "'--limit': 9223372036854775808 is not in the range"),
        (["init", "{shop}", "--config", "nowhere/x.toml"], 1, "system refused: [Errno 2] No such"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistake_is_one_sentence_and_a_code(expect_refusal, arguments, code, words):
    """A mistake is answered with a sentence, without a traceback or a stray file."""
    expect_refusal(arguments, code, words)


GROUPS = [[], *([name] for name, one in commands.commands.items() if isinstance(one, click.Group))]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_list_of_commands_shows_whole_sentences(group):
    """In a terminal of 80 columns, the help of a group cuts off no sentence about a command."""
    listed = CliRunner().invoke(commands, [*group, "--help"]).output.partition("Commands:")[2]
    lines = listed.strip().splitlines()
    assert lines
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)
