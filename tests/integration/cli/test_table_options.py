"""Options that contradict each other, or name what does not exist, are refused."""

import pytest
from harness.command_line import invoke
from harness.shop import fill

TABLE = ["--table", "orders", "--position", "id"]
SERVE = ["--database", "{shop}", *TABLE]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([*SERVE, "--table", "nothing"], 2, "no table 'nothing'"),
        (["--database", "{missing}", *TABLE], 2, "missing.db"),
        (["--database", "nonsense", *TABLE], 2, "database URL"),
        (["--database", "sqlite+aiosqlite://", *TABLE], 2, "asynchronous code"),
        (["--database", "postgresql://127.0.0.1:1/x", *TABLE], 1, "database"),
        ([*SERVE, "--key", "customer", "--time", "placed", "--compacted"], 2, "has no row of feed"),
        ([*SERVE, "--cache", "x"], 2, "give --archive too"),
        ([*SERVE, "--attribute", "subject"], 2, "written as NAME=COL"),
    ],
)
def test_table_that_cannot_be_published_is_refused(expect_refusal, options, code, words):
    """A refusal is a sentence, without a traceback or a stray file."""
    expect_refusal(["serve", *options], code, words)


def test_database_file_may_be_named_by_a_uri(sqlite, tmp_path):
    """SQLite opens a file by a URI as well, such as one that may only be read."""
    fill(sqlite, 2)
    url = f"sqlite:///file:{tmp_path}/{{}}.db?mode=ro&uri=true"
    table = ("--table", "orders", "--data", "data")
    assert invoke("check", "--database", url.format("test"), *table).exit_code == 0
    refused = invoke("check", "--database", url.format("missing"), *table)
    assert refused.stderr == f"Error: There is no database file {tmp_path}/missing.db.\n"
