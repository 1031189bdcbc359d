"""Partitions by the hash of a key, in Python and in SQL, with the same result on every database.

docs/partitions.md defines the hash, with examples. SQLite computes it by a Python function that
`hash_on_connect` registers on every connection.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Engine, Integer, and_, case, literal_column
from sqlalchemy import types as sql
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import StrSQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.partitions import HASHES, Layout, Share, key_hash


def partition_of(key: str | int, partitions: int) -> int:
    """Return the partition of a key: its hash modulo the number of partitions.

    Raises:
        ConfigurationError: the key is neither text nor a whole number.
    """
    return key_hash(key) % _check_count(partitions)


def partition_expression(column: ColumnElement[Any] | Any, partitions: int) -> ColumnElement[int]:
    """Return the SQL expression of the partition of a key: its hash modulo `partitions`.

    Args:
        column: the key: a column of text or of whole numbers, or an expression of such a type.
        partitions: the number of partitions, from 1 on.

    Raises:
        ConfigurationError: the column has another type, or one whose text the database changes, or
            the number is too small.
    """
    return _Remainder(_Hash(_key(column)), _number(_check_count(partitions)))


def layout_expression(
    layout: Layout,
    *,
    key: ColumnElement[Any] | Any | None = None,
    written: ColumnElement[Any] | Any | None = None,
) -> ColumnElement[int]:
    """Return the SQL expression of the partition in which a layout shows an event.

    Args:
        layout: the partitions.
        key: the event's key; required without `written`, or if the layout was redistributed.
        written: the column of the partition to which the writer assigned the event under this
            layout or an earlier one; without it, the hash of the key decides alone.

    Raises:
        ConfigurationError: the layout needs an argument that the caller left out.
    """
    if written is not None:
        return _current_partition(layout, key, _clause(written))
    if not layout.is_by_hash_alone:
        raise ConfigurationError(
            "A partition of the layout was split, so events of one key are in several: give the "
            "column of the partition that an event was written to."
        )
    if key is None:
        raise ConfigurationError("Give the key, or the partition that an event was written to.")
    shares = (*layout.partitions, *layout.dropped)
    count, lowest = shares[0].modulus, shares[0].id - shares[0].remainder
    if any((share.modulus, share.id - share.remainder) != (count, lowest) for share in shares):
        return _heir_by_hash(shares, _Hash(_key(key)))
    # In most layouts the ids are the remainders, and need no CASE.
    remainder = partition_expression(key, count)
    return remainder if lowest == 0 else _number(lowest) + remainder


def outside(column: ColumnElement[Any], ids: Collection[int]) -> list[ColumnElement[bool]]:
    """Return conditions for events in none of the partitions, each a range of an index."""
    ordered = sorted(ids)
    gaps = [and_(column > low, column < high) for low, high in pairwise(ordered) if high - low > 1]
    return [column.is_(None), column < ordered[0], column > ordered[-1], *gaps]


def hash_on_connect(engine: Engine | AsyncEngine) -> None:
    """Register the hash function on every connection of a SQLite engine; may be called again.

    The other databases need no such function, and their engines stay unchanged.

    Args:
        engine: the feed's engine.
    """
    engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    database_of(engine).prepare(engine)


class _Hash(FunctionElement[int]):
    """SQL of the hash of a text."""

    inherit_cache = True
    type = BigInteger()
    name = "hash"


class _Remainder(FunctionElement[int]):
    """SQL of the remainder of a division, without the percent sign that some drivers interpret."""

    inherit_cache = True
    type = Integer()
    name = "remainder"


@compiles(_Hash)
def _hash_sql(element: _Hash, compiler: Any, **options: Any) -> str:
    text = compiler.process(element.clauses, **options)
    # Without a database, for `str` and for a digest of how rows are divided into partitions.
    if isinstance(compiler, StrSQLCompiler):
        return f"hash({text})"
    return database_of(compiler).text_hash(text)


@compiles(_Remainder)
def _remainder_sql(element: _Remainder, compiler: Any, **options: Any) -> str:
    dividend, divisor = (compiler.process(clause, **options) for clause in element.clauses)
    if isinstance(compiler, StrSQLCompiler):
        return f"remainder({dividend}, {divisor})"
    return database_of(compiler).remainder(dividend, divisor)


def _current_partition(
    layout: Layout, key: ColumnElement[Any] | Any | None, written: ColumnElement[Any]
) -> ColumnElement[int]:
    """Return an event's partition: the writer's, or by hash one of those that replaced it."""
    shares = (*layout.partitions, *layout.dropped)
    ancestors = sorted({ancestor for share in shares for ancestor in share.cursor_from})
    if not ancestors:
        return written
    if key is None:
        raise ConfigurationError(
            "The layout was redistributed: give the key of an event as well, by whose hash events "
            "are divided."
        )
    hashed = _Hash(_key(key))
    cases = (
        (written == _number(number), _heir_by_hash(layout.heirs(number), hashed))
        for number in ancestors
    )
    return case(*cases, else_=written)


def _heir_by_hash(heirs: Iterable[Share], hashed: ColumnElement[int]) -> ColumnElement[int]:
    remainders = ((_Remainder(hashed, _number(heir.modulus)), heir) for heir in heirs)
    return case(*((one == _number(heir.remainder), _number(heir.id)) for one, heir in remainders))


def _number(number: int) -> ColumnElement[int]:
    """Return a number as a literal, so that the expression matches that of an index."""
    return literal_column(str(number), Integer())


def _check_count(partitions: int) -> int:
    if not 1 <= partitions <= HASHES:
        raise ConfigurationError(f"The number of partitions is 1 or more, not {partitions}.")
    return partitions


def _clause(column: ColumnElement[Any] | Any) -> ColumnElement[Any]:
    clause = getattr(column, "__clause_element__", None)
    found = column if clause is None else clause()
    if not isinstance(found, ColumnElement):
        raise ConfigurationError(f"{column!r} is neither a column nor a SQL expression.")
    return found


def _key(column: ColumnElement[Any] | Any) -> ColumnElement[Any]:
    """Return a key that has the same text on every database."""
    clause = _clause(column)
    match clause.type:
        case sql.Enum() | sql.CHAR() | sql.NCHAR():
            raise ConfigurationError(
                f"{clause} has the SQL type {clause.type!r}, which databases pad or translate: "
                "hash sqlalchemy.cast(…, sqlalchemy.Text) of it."
            )
        case sql.String():
            return clause
        case sql.Integer():
            # Adding 0 drops the leading zeros of a ZEROFILL column in MariaDB and MySQL.
            return clause + _number(0)
    raise ConfigurationError(
        f"A key is text or a whole number; {clause} has the SQL type {clause.type!r}."
    )
