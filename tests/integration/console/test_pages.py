"""How a console writes numbers, times and sizes, and its files."""

from datetime import UTC, datetime

import pytest

from zeroeventhub.console.pages import asset, grouped, moment, size


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "—"), (0, "0"), (1234567, "1,234,567"), (3.0, "3"), (1234.567, "1,234.57")],
)
def test_numbers_are_grouped(number, text):
    """Digits are grouped by thousands."""
    assert grouped(number) == text


def test_moment_is_exact_to_machines():
    """A moment has its exact instant in UTC beside what people read."""
    found = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    exact = "2026-01-31T12:00:00.250Z"
    expected = f'<time datetime="{exact}" title="{exact}">2026-01-31 12:00:00 UTC</time>'
    assert moment(found) == moment(found.isoformat()) == expected
    assert moment(None) == "—"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (2048, "2.0 KiB"), (5 << 40, "5.0 TiB")])
def test_size_has_a_unit(count, text):
    """Bytes are in the largest unit that fits."""
    assert size(count) == text


def test_asset_is_kept_by_caches():
    """A file's address changes with its content, so browsers ask for it once."""
    answer = asset("console.js")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.media_type == "text/javascript"
    with pytest.raises(KeyError):
        asset("../routes.py")
