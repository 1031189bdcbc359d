"""What a command cannot do is said in one sentence, with an exit code."""

import pytest
from harness.command_line import invoke
from harness.shop import metadata, place

from zeroeventhub import CursorStore

NOWHERE = "http://127.0.0.1:1/"
TAIL = ["tail", NOWHERE]
SYNC = ["sync", "--into", "sqlite:///stray.db", "--table", "t"]
SERVE = ["serve", "--database", "{shop}", "--table", "orders", "--position", "id"]
CHECK = ["check", "--database", "{shop}", "--table", "orders"]
CONFORMANCE = ["conformance", NOWHERE]
TRIM = ["trim", "--database", "{shop}", "--table", "orders", "--yes"]
LAG = ["lag", NOWHERE, "--store", "{shop}"]


@pytest.fixture
def shop(sqlite, tmp_path, monkeypatch):
    """A database with two orders and a consumer, in the folder where the command runs."""
    metadata.create_all(sqlite)
    store = CursorStore(sqlite)
    with sqlite.begin() as connection:
        place(connection, 2, partitions=2)
        store.create_tables(connection)
        store.load(connection, "billing", 0)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*SERVE[:4], "nothing", "--position", "id"], 2, "no table 'nothing'"),
        ([*SERVE, "--columns", "id,nothing"], 2, "no column 'nothing'"),
        ([*SERVE, "--data", "data", "--columns", "id"], 2, "not both"),
        ([*SERVE, "--partitions", "2"], 2, "--partition"),
        ([*SERVE[:5], "--position", "customer"], 2, "whole numbers"),
        (["serve", "--database", "sqlite:///missing.db", *SERVE[3:]], 2, "missing.db"),
        (["serve", "--database", "nonsense", *SERVE[3:]], 2, "database URL"),
        (["serve", "--database", "postgresql://127.0.0.1:1/x", *SERVE[3:]], 1, "database"),
        (["check"], 2, "--database"),
        (["seal", *CHECK[1:]], 2, "Say where to seal it"),
        (["erase", *CHECK[1:], "--archive", "x", "--erasable"], 2, "Say which events"),
        ([*TRIM], 2, "Say what to trim"),
        ([*TRIM, "--older-than", "soon"], 2, "an age is written as"),
        ([*TRIM, "--below", "3"], 2, "has no row of feed 'orders.id'"),
        ([*SERVE, "--key", "customer", "--time", "placed", "--compacted"], 2, "has no row of feed"),
        ([*SERVE, "--tombstone", "kind = 'gone'"], 2, "give --compacted too"),
        (["discover", NOWHERE], 1, "cannot be reached"),
        ([*SYNC, NOWHERE, "--consumer", "c"], 1, "cannot be reached"),
        ([*TAIL, "-H", "nonsense"], 2, "'Name: value'"),
        ([*TAIL, "--from", "first", "--since", "2026-01-31T12:00:00Z"], 2, "not both"),
        ([*TAIL, "--event-type", "a;b"], 2, "semicolons"),
        (CONFORMANCE, 2, "cannot be reached"),
        ([*CONFORMANCE, "--only", "nonsense"], 2, "'nonsense'"),
        ([*LAG, "--consumer", "typo"], 2, "no consumer 'typo'; it has billing"),
        ([*LAG, "--consumer", "billing"], 1, "cannot be reached"),
        (["cursors", "list", "--store", "sqlite:///missing.db"], 2, "There is no database file"),
        (["cursors", "list", "--store", "{empty}"], 2, "has no table zeroeventhub_cursors"),
        (["nonsense"], 2, "nonsense"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_mistake_is_one_sentence_and_a_code(sqlite_url, tmp_path, arguments, code, words):
    """What cannot be done is said in a sentence, without a traceback or a stray file."""
    (tmp_path / "empty.db").touch()
    before = set(tmp_path.iterdir())
    places = {"{shop}": sqlite_url, "{empty}": "sqlite:///empty.db"}
    shown = invoke(*(places.get(part, part) for part in arguments))
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr
    assert set(tmp_path.iterdir()) == before
