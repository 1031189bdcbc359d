"""What tells a server from the one that was there before a failover."""

from sqlalchemy import Connection, TextClause

__all__ = ["server_name"]

_KEPT_AS = "zeroeventhub_server"


def server_name(connection: Connection, query: TextClause) -> str:
    """Return the name of the server that a connection leads to, asked for once a connection.

    Args:
        connection: it stays with one server for as long as it is open.
        query: asks for the name.
    """
    if _KEPT_AS not in connection.info:
        connection.info[_KEPT_AS] = str(connection.scalar(query))
    return str(connection.info[_KEPT_AS])
