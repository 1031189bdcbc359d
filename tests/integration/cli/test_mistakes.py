"""What a command cannot do is said in one sentence, with an exit code."""

import pytest
from harness.command_line import invoke
from harness.shop import metadata, place

TAIL = ["tail", "http://127.0.0.1:1/"]
SYNC = ["sync", "--into", "sqlite:///stray.db", "--table", "t"]
SERVE = ["serve", "--database", "{shop}", "--table", "orders", "--position", "id"]


@pytest.fixture
def shop(sqlite, tmp_path, monkeypatch):
    """A database with two orders, in the folder where the command runs."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 2, partitions=2)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*SERVE[:4], "nothing", "--position", "id"], 2, "no table 'nothing'"),
        ([*SERVE[:5], "--position", "nothing"], 2, "no column 'nothing'"),
        ([*SERVE, "--columns", "id,nothing"], 2, "no column 'nothing'"),
        ([*SERVE, "--data", "data", "--columns", "id"], 2, "not both"),
        ([*SERVE, "--partition", "part", "--partitions", "1"], 2, "partition 1"),
        ([*SERVE, "--partitions", "2"], 2, "--partition"),
        ([*SERVE, "--data", "customer"], 2, "position 1"),
        ([*SERVE[:5], "--position", "customer"], 2, "whole numbers"),
        (["serve", "--database", "sqlite:///missing.db", *SERVE[3:]], 2, "missing.db"),
        (["serve", "--database", "nonsense", *SERVE[3:]], 2, "database URL"),
        (["serve", "--database", "oracle://x/y", *SERVE[3:]], 2, "driver"),
        (["serve", "--database", "postgresql://127.0.0.1:1/x", *SERVE[3:]], 1, "database"),
        (["discover", "http://127.0.0.1:1/"], 1, "cannot be reached"),
        (["discover", "http://host:port/"], 2, "not a URL"),
        ([*SYNC, "http://127.0.0.1:1/", "--consumer", "c"], 1, "cannot be reached"),
        ([*SYNC, "http://127.0.0.1:1/", "--consumer", ""], 2, "name"),
        ([*SERVE, "--path", "/{x}"], 2, "--path"),
        ([*SERVE, "--metrics", "/{x}"], 2, "--metrics"),
        (["serve", "--database", "sqlite+aiosqlite:///x.db", *SERVE[3:]], 2, "asynchronous"),
        (["discover", "shop/orders"], 2, "http://"),
        (["tail", "http://127.0.0.1:1/", "-H", "nonsense"], 2, "'Name: value'"),
        (["tail"], 2, "URL"),
        ([*TAIL, "--from", "first", "--since", "2026-01-31T12:00:00Z"], 2, "not both"),
        ([*TAIL, "--since", "yesterday"], 2, "such as 2026-01-31T12:00:00Z"),
        ([*TAIL, "--event-type", "a", "--skip-event-type", "b"], 2, "not both"),
        ([*TAIL, "--event-type", "a;b"], 2, "semicolons"),
        ([*TAIL, "--skip-event-type", ""], 2, "1 to 256"),
        ([*TAIL, "--event-type", "a"], 1, "cannot be reached"),
        ([*SYNC, "--consumer", "c", *TAIL[1:], "--event-type", "a;b"], 2, "semicolons"),
        (["nonsense"], 2, "nonsense"),
    ],
)
@pytest.mark.usefixtures("shop")
def test_mistake_is_one_sentence_and_a_code(sqlite_url, tmp_path, arguments, code, words):
    """What cannot be done is said in a sentence, without a traceback or a stray file."""
    before = set(tmp_path.iterdir())
    shown = invoke(*(part.replace("{shop}", sqlite_url) for part in arguments))
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr
    assert set(tmp_path.iterdir()) == before
