"""The guides to retention and to archives do what they say."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from harness.guides import DOCUMENTS, guide
from harness.shop import metadata, orders
from harness.trimmed import numbers
from sqlalchemy import func, insert, select

from zeroeventhub.publisher.retention import Retention


@pytest.mark.parametrize(
    ("document", "marks"),
    [
        ("retention.md", ["progress", "thin", "compaction", "trim"]),
        ("archive.md", ["seal"]),
    ],
)
def test_guide_runs(sqlite, tmp_path, monkeypatch, document, marks):
    """Each piece of a guide works, and of two orders the old one is trimmed."""
    monkeypatch.chdir(tmp_path)
    metadata.create_all(sqlite)
    places = {"s3://shop-history/orders": str(tmp_path / "archive")}
    with guide(document, places=places, orders=orders, engine=sqlite) as piece:
        piece("feed")
        now = datetime.now(UTC)
        rows = [{"placed": when, "data": {"n": 1}} for when in (now - timedelta(days=40), now)]
        with sqlite.begin() as connection:
            connection.execute(insert(orders), rows)
        for mark in marks:
            names = piece(mark)
    with sqlite.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(orders)) == 1
    if document == "archive.md":
        assert numbers(names["bound"]) == [1, 1]


def test_guide_names_the_columns():
    """The table of the guide to retention has the columns of the table."""
    text = (DOCUMENTS / "retention.md").read_text()
    table = text.partition("| column |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [column.name for column in Retention().table.c]
