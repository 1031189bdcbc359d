"""Who holds a lock in PostgreSQL: the writers that an operator wants to see."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, text

from zeroeventhub.publisher.ordering.port import Blocker

__all__ = ["find_blockers"]

# A prepared transaction has no process. It is found by the lock that it holds on its own number.
_BLOCKERS = """
    SELECT activity.pid, coalesce(activity.usename, prepared.owner, '') AS "user",
           coalesce(prepared.gid, activity.application_name, '') AS application,
           clock_timestamp() - coalesce(activity.xact_start, prepared.prepared) AS age,
           clock_timestamp() - activity.query_start AS query_age
    FROM (SELECT DISTINCT pid, virtualtransaction FROM pg_locks WHERE {holds}) AS holder
    LEFT JOIN pg_stat_activity AS activity ON activity.pid = holder.pid
    LEFT JOIN LATERAL (
        SELECT xact.* FROM pg_locks AS own JOIN pg_prepared_xacts AS xact
            ON own.transactionid = xact.transaction
        WHERE own.locktype = 'transactionid' AND own.pid IS NULL AND holder.pid IS NULL
            AND own.virtualtransaction = holder.virtualtransaction
    ) AS prepared ON true
    ORDER BY age DESC NULLS LAST
"""


def find_blockers(connection: Connection, holds: str, values: Mapping[str, Any]) -> list[Blocker]:
    """Name the transactions that hold certain locks, the oldest first.

    Args:
        connection: to the feed's database.
        holds: a condition on a row of pg_locks.
        values: the condition's parameters.
    """
    rows = connection.execute(text(_BLOCKERS.format(holds=holds)), values)
    return [
        Blocker(row.pid, row.user, row.application, row.age or timedelta(), row.query_age)
        for row in rows
    ]
