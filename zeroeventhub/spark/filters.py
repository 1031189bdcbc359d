"""Filters of a query, as far as a feed can apply them."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from typing import Any

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.spark.options import Options

__all__ = ["narrowed"]

_MOST_TYPES = 100
"""Names of types that a feed takes in a request (SPEC 9.3)."""


def narrowed(options: Options, filters: Sequence[Any], columns: AbstractSet[str]) -> Options:
    """Narrow what is asked of a feed to what some filters let through, or somewhat more.

    Args:
        options: what is asked.
        filters: of `pyspark.sql.datasource`, of which all have to hold.
        columns: those that the feed knows; others are members of the events' JSON, by whatever
            names.
    """
    for one in filters:
        attribute = getattr(one, "attribute", ())
        if not columns >= {*attribute}:
            continue
        match type(one).__name__, attribute:
            case "EqualTo" | "In", ("partition",):
                options = _of_partitions(options, _values(one))
            case "EqualTo" | "In", ("type",):
                options = _of_types(options, _values(one))
            case "GreaterThan" | "GreaterThanOrEqual", ("time",):
                options = _since(options, one.value)
    return options


def _values(one: Any) -> frozenset[Any]:
    return frozenset(one.value if isinstance(one.value, tuple | list) else [one.value])


def _of_partitions(options: Options, partitions: frozenset[Any]) -> Options:
    among = partitions if options.among is None else options.among & partitions
    return replace(options, among=among)


def _of_types(options: Options, names: frozenset[Any]) -> Options:
    """Ask for some types; the feed takes no more than a hundred."""
    if options.types is not None or len(names) > _MOST_TYPES:
        return options
    try:
        return replace(options, types=TypeFilter(names))
    except (ConfigurationError, TypeError):
        return options


def _since(options: Options, moment: Any) -> Options:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return options
    return replace(options, since=max(moment, options.since or moment))
