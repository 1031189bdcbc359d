"""The kinds of writers that hurt: each is a function that writes with a pen."""

from collections.abc import Callable

from harness.torture.kinds import mariadb, portable, postgresql, served, sqlite
from harness.torture.pen import Pen

Kind = Callable[[Pen], None]

HURTING: dict[str, tuple[Kind, ...]] = {
    "postgresql": (*portable.KINDS, *served.KINDS, *postgresql.KINDS),
    "mariadb": (*portable.KINDS, *served.KINDS, *mariadb.KINDS),
    "sqlite": (*portable.KINDS, *sqlite.KINDS),
}
"""The kinds of each database that take time and other liberties."""

FAST: tuple[Kind, ...] = (portable.one_row_transactions,)
BULK: tuple[Kind, ...] = (portable.bulk,)
