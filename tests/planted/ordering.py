"""Mistakes that the tests of the orderings have to notice."""

from harness.planted import Planted

_FOLDER = "tests/integration/publisher/ordering"
_OBSERVED = f"{_FOLDER}/test_observed.py"
_GATED = (f"{_FOLDER}/test_gated.py", "-k", "gated")
_SEQUENCED = f"{_FOLDER}/test_sequenced.py"
_ROUNDS = ("tests/unit/publisher/ordering/test_writer_tracker.py",)

PLANTED = (
    Planted(
        "a feed is read no further than what is settled",
        "publisher/reader.py",
        "        until = horizon.settled if end is None",
        "        until = horizon.highest if end is None",
        (f"{_FOLDER}/test_port.py", "-k", "open_writer and postgresql"),
    ),
    Planted(
        "the last number is read before those who write",
        "publisher/ordering/postgresql_observed.py",
        """        number = self._last_number(connection, seconds)
        if (decided := self._tracker.decided(began, number)) is not None:
            return decided
        writers = connection.scalars(_WRITERS, self._table_name(connection)).all()
""",
        """        writers = connection.scalars(_WRITERS, self._table_name(connection)).all()
        number = self._last_number(connection, seconds)
        if (decided := self._tracker.decided(began, number)) is not None:
            return decided
""",
        (_OBSERVED, "-k", "observed-postgresql"),
    ),
    Planted(
        "writers to the children of a table are waited for",
        "publisher/ordering/postgresql_observed.py",
        "            UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = tables.id\n",
        "",
        (_OBSERVED, "-k", "observed-postgresql"),
    ),
    Planted(
        "a transaction that MariaDB has prepared is a writer",
        "publisher/ordering/mysql_observed.py",
        '[*(str(holder.name) for holder in holders), *(f"{PREPARED}{name}" for name in prepared)]',
        "[str(holder.name) for holder in holders]",
        (_OBSERVED, "-k", "mariadb"),
    ),
    Planted(
        "a writer that is gone may have become a prepared transaction",
        "publisher/ordering/writer_tracker.py",
        "                left |= prepared\n",
        "",
        _ROUNDS,
    ),
    Planted(
        "a reading says nothing of a round that was read after it began",
        "publisher/ordering/writer_tracker.py",
        "left = holders & writers if began > round_.read_by else holders",
        "left = holders & writers",
        _ROUNDS,
    ),
    Planted(
        "what one server has drawn says nothing of another",
        "publisher/ordering/writer_tracker.py",
        "self._server, self._server_since = server, next(self._ticks)\n"
        "                self._settled, self._open = None, {}",
        "self._server, self._server_since = server, next(self._ticks)",
        _ROUNDS,
    ),
    Planted(
        "the marks of a gate are read after the last number",
        "publisher/ordering/postgresql_gated.py",
        """        number = self._last_number(connection, seconds)
        # In this order: a writer that arrives in between draws only numbers above this one.
        marks = connection.scalars(_MARKS, self._table_name(connection)).all()
""",
        """        marks = connection.scalars(_MARKS, self._table_name(connection)).all()
        number = self._last_number(connection, seconds)
""",
        _GATED,
    ),
    Planted(
        "a mark is completed to the number that is nearest",
        "publisher/ordering/postgresql_gated.py",
        "number - (gap if gap < span // 2 else gap - span)",
        "number - gap",
        _GATED,
    ),
    Planted(
        "a sequence that hands out several numbers at once is refused",
        "publisher/ordering/postgresql_observed.py",
        " or found.cycles or found.cache != 1:",
        " or found.cycles:",
        (_OBSERVED, "-k", "unruly"),
    ),
    Planted(
        "positions are given one reader at a time, on PostgreSQL",
        "publisher/ordering/postgresql_sequenced.py",
        "SELECT * INTO state FROM {state} FOR UPDATE SKIP LOCKED;",
        "SELECT * INTO state FROM {state};",
        (_SEQUENCED, "-k", "postgresql"),
    ),
    Planted(
        "the right to give positions is taken before their events are read, on MariaDB",
        "publisher/ordering/mysql_sequenced.py",
        "            FROM {state} AS state WHERE state.id = 1 FOR UPDATE SKIP LOCKED;",
        "            FROM {state} AS state WHERE state.id = 1;",
        (_SEQUENCED, "-k", "mariadb"),
    ),
    Planted(
        "the low mark waits for the writers of its time",
        "publisher/ordering/postgresql_sequenced.py",
        "            virtualtransaction = ANY (state.holders) OR virtualtransaction LIKE '-1/%'",
        "            virtualtransaction LIKE '-1/%'",
        (_SEQUENCED, "-k", "postgresql"),
    ),
    Planted(
        "a key that comes back has a place of its own, on SQLite",
        "publisher/ordering/sqlite_sequenced.py",
        "    DELETE FROM {positions} WHERE {known};\n    INSERT INTO {positions}",
        "    INSERT OR IGNORE INTO {positions}",
        (_SEQUENCED, "-k", "sqlite"),
    ),
    Planted(
        "a table of SQLite that gives a number again is refused",
        "publisher/ordering/sqlite_single_writer.py",
        '_QUOTED_OR_COMMENT.sub(" ", declaration(connection, "table", name)).upper()',
        'declaration(connection, "table", name).upper()',
        (f"{_FOLDER}/test_single_writer.py",),
    ),
    Planted(
        "an age is that of the oldest number that is not settled",
        "publisher/horizon.py",
        "            return now - seen[0][1] if seen else 0.0",
        "            return now - seen[-1][1] if seen else 0.0",
        ("tests/unit/publisher/test_horizon.py",),
    ),
)
