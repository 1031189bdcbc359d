"""Positions that are given after the commit, in a table beside that of the events.

A trigger notes the key of every new row. Whoever reads the feed gives positions to what has been
committed by then, one at a time: the number of an event is drawn when everybody can see it, and
so what has a position is settled. Any key will do, and no open writer holds anybody back.
"""

from zeroeventhub.publisher.ordering.sequenced.mysql import MysqlSequenced
from zeroeventhub.publisher.ordering.sequenced.postgresql import PostgresqlSequenced
from zeroeventhub.publisher.ordering.sequenced.sqlite import SqliteSequenced

__all__ = ["MysqlSequenced", "PostgresqlSequenced", "SqliteSequenced"]
