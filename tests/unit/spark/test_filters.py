"""Filters of a query, narrowed to what a feed can be asked."""

from datetime import UTC, datetime

import pytest

from zeroeventhub.protocol import TypeFilter
from zeroeventhub.spark.filters import narrowed
from zeroeventhub.spark.options import Options

filters = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(filters, "EqualTo"):
    pytest.skip("this PySpark does not push filters", allow_module_level=True)

ALL = frozenset({"partition", "type", "time", "id"})
PLAIN = Options(url="https://shop.example/orders")
MOMENTS = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]


def types(*names):
    """A filter of types."""
    return TypeFilter(frozenset(names))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([filters.EqualTo(("partition",), 1)], {"among": {1}}),
        ([filters.In(("partition",), (0, 1)), filters.EqualTo(("partition",), 1)], {"among": {1}}),
        (
            [filters.EqualTo(("partition",), 0), filters.EqualTo(("partition",), 1)],
            {"among": frozenset()},
        ),
        ([filters.EqualTo(("type",), "Paid")], {"types": types("paid")}),
        ([filters.In(("type",), ("a", "b"))], {"types": types("a", "b")}),
        ([filters.EqualTo(("type",), "a"), filters.EqualTo(("type",), "b")], {"types": types("a")}),
        ([filters.EqualTo(("type",), "two words")], {}),
        ([filters.EqualTo(("type",), "")], {}),
        ([filters.In(("type",), ("a", None))], {}),
        ([filters.In(("type",), tuple(map(str, range(101))))], {}),
        (
            [filters.GreaterThan(("time",), one) for one in (MOMENTS[1], MOMENTS[2], MOMENTS[0])],
            {"since": MOMENTS[2]},
        ),
        ([filters.GreaterThanOrEqual(("time",), MOMENTS[0])], {"since": MOMENTS[0]}),
        ([filters.GreaterThan(("time",), datetime(2026, 1, 1))], {}),  # noqa: DTZ001 - as it says
        ([filters.LessThan(("time",), MOMENTS[0])], {}),
        ([filters.Not(filters.EqualTo(("partition",), 1))], {}),
        ([filters.EqualTo(("partition", "within"), 1)], {}),
        ([filters.GreaterThan(("partition",), 1)], {}),
        ([filters.EqualTo(("id",), "7")], {}),
        ([filters.IsNotNull(("type",))], {}),
    ],
)
def test_feed_is_asked_for_what_filters_let_through(given, expected):
    """What a feed cannot be asked is left to Spark; nothing that Spark would keep is left out."""
    assert narrowed(PLAIN, given, ALL) == Options(url=PLAIN.url, **expected)


def test_types_that_were_asked_for_stay():
    """A filter does not take the place of the option."""
    asked = Options(url=PLAIN.url, types=types("a"))
    assert narrowed(asked, [filters.EqualTo(("type",), "b")], ALL) == asked
