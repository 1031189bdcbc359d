"""How consumers under fire connect to their databases."""

from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {
    # SQLite queues writers without order; the last in the queue needs patience, in seconds.
    "sqlite": {"timeout": 60},
    "sqlite+aiosqlite": {"timeout": 60},
    # To load certificates takes longer than all else, and nobody asks for them here.
    "mariadb+pymysql": {"ssl_disabled": True},
}


def arguments(url: str) -> dict[str, Any]:
    """Return what an engine passes to the driver of a database."""
    return ARGUMENTS.get(url.partition(":")[0], {})
