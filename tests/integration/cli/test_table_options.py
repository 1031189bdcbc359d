"""Options that contradict each other, or name what does not exist, are refused."""

import pytest

TABLE = ["--table", "orders", "--position", "id"]
SERVE = ["--database", "{shop}", *TABLE]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([*SERVE, "--table", "nothing"], 2, "no table 'nothing'"),
        ([*SERVE, "--columns", "id,nothing"], 2, "no column 'nothing'"),
        ([*SERVE, "--data", "data", "--columns", "id"], 2, "not both"),
        ([*SERVE, "--partitions", "2"], 2, "--partition"),
        ([*SERVE, "--position", "customer"], 2, "whole numbers"),
        (["--database", "{missing}", *TABLE], 2, "missing.db"),
        (["--database", "nonsense", *TABLE], 2, "database URL"),
        (["--database", "sqlite+aiosqlite://", *TABLE], 2, "asynchronous code"),
        (["--database", "postgresql://127.0.0.1:1/x", *TABLE], 1, "database"),
        ([*SERVE, "--key", "customer", "--time", "placed", "--compacted"], 2, "has no row of feed"),
        ([*SERVE, "--tombstone", "kind = 'gone'"], 2, "give --compacted too"),
        ([*SERVE, "--cache", "x"], 2, "give --archive too"),
        ([*SERVE, "--erasable"], 2, "give --archive too"),
        ([*SERVE, "--attribute", "subject"], 2, "written as NAME=COL"),
    ],
)
def test_table_that_cannot_be_published_is_refused(expect_refusal, options, code, words):
    """A refusal is a sentence, without a traceback or a stray file."""
    expect_refusal(["serve", *options], code, words)
