"""Mistakes in what publishes a table."""

from harness.planted import Planted

_ROOM = "tests/integration/publisher"
_DATABASES = "tests/integration/databases"
_UNIT = "tests/unit/publisher"
_SQLITE = ("-k", "sqlite")

PLANTED = (
    Planted(
        "events of no partition are not trimmed",
        "publisher/trimming.py",
        "        self._reader.checks.refuse_unpublished(connection)\n",
        "",
        (f"{_ROOM}/test_partitions.py", "-k", "not_deleted"),
    ),
    Planted(
        "a feed grows with its table",
        "publisher/checks.py",
        "            if count > before:",
        "            if count < before:",
        (f"{_ROOM}/test_partitions.py", *_SQLITE),
    ),
    Planted(
        "the horizon: no piece of a partition reaches beyond it",
        "publisher/reader.py",
        "        until = max(horizon.settled if end is None",
        "        until = max(horizon.highest if end is None",
        (f"{_ROOM}/test_reader.py", "-k", "above_the_horizon"),
    ),
    Planted(
        "the diverged check: a cursor of another history is refused",
        "publisher/history.py",
        "compare_digest(self._signer.check(place.position, event.raw), place.check)",
        "bool(place.check)",
        (f"{_UNIT}/test_history.py",),
    ),
    Planted(
        "each of two cursors is checked, not the first alone",
        "publisher/history.py",
        "        for place, row in found:",
        "        for place, row in found[:1]:",
        (f"{_UNIT}/test_history.py",),
    ),
    Planted(
        "a cursor beyond the last event is refused",
        "publisher/reader.py",
        "            if place is not None and place.position > horizon.highest:",
        "            if place is not None and place.position < 0:",
        (f"{_ROOM}/test_reader.py", "-k", "v1"),
    ),
    Planted(
        "text that is not JSON is not passed on",
        "publisher/rows.py",
        "        on_one_line = self._check(texts, positions.__getitem__)",
        "        on_one_line = True",
        (f"{_UNIT}/test_rows.py",),
    ),
    Planted(
        "a secret hides the event at which a cursor stands",
        "publisher/cursor.py",
        ", salt=salt).hexdigest()",
        ").hexdigest()",
        (f"{_UNIT}/test_cursor.py",),
    ),
    Planted(
        "no page has more events than are wanted",
        "publisher/page_query.py",
        "        stop = min(len(rows.texts), start + request.limit - self.rows)",
        "        stop = len(rows.texts)",
        (f"{_ROOM}/test_reader.py", *_SQLITE),
    ),
    Planted(
        "a filter holds for every portion of a page",
        "publisher/page_query.py",
        """            left -= portion
""",
        """            left -= portion
            query = self._statement(hint, None, streams)
""",
        (f"{_ROOM}/test_page_query.py", "-k", "has_room"),
    ),
    Planted(
        "a stop is reached with the event at it",
        "publisher/reader.py",
        "                reached = max(until, after) >= stop.position",
        "                reached = max(until, after) > stop.position",
        (f"{_ROOM}/test_reader.py", *_SQLITE),
    ),
    Planted(
        "an error of the database that no waiting mends is no reason to come back",
        "databases/error_codes.py",
        '        if _is(error, "changed"):',
        '        if _is(error, "late"):',
        (f"{_ROOM}/test_checks.py", *_SQLITE),
    ),
    Planted(
        "a connection is given back as it was after an error as well",
        "databases/read_only.py",
        "    except Exception:\n        _end(connection, session, kept)\n        raise\n",
        "    except Exception:\n        raise\n",
        (f"{_DATABASES}/test_read_only.py", "-k", "as_it_was and sqlite"),
    ),
    Planted(
        "the deadline begins anew with each statement",
        "databases/sqlite.py",
        "            deadline = monotonic() + self._seconds\n",
        "            deadline = min(deadline, monotonic() + self._seconds)\n",
        (f"{_DATABASES}/test_sqlite.py", "-k", "each_statement"),
    ),
)
