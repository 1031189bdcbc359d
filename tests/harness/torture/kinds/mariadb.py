"""Kinds of writers that only MariaDB has."""

import tempfile
import time

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError

from harness.torture.kinds.portable import THINKING
from harness.torture.pen import Pen
from harness.torture.schema import events

STILL_OWNED = {1397, 1399}  # XAER_NOTA, XAER_RMFAIL


def prepared(pen: Pen) -> None:
    """Prepare the transaction; it is decided here, or elsewhere once the line is gone."""
    token = pen.token()
    try:
        pen.connection.execute(text(f"XA START '{token}'"))
        for key in pen.keys(2):
            pen.append(key)
        pen.connection.execute(text(f"XA END '{token}'"))
        pen.connection.execute(text(f"XA PREPARE '{token}'"))
    except DBAPIError:
        pen.lose()  # nothing but XA ROLLBACK would be heard here any more
        raise
    pen.pause(THINKING)
    decision = text(f"XA {pen.dice.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} '{token}'")
    if pen.dice.random() < 0.5:
        pen.connection.execute(decision)
        return
    pen.lose()
    pen.pause(THINKING)
    with pen.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
        _persist(other, decision)


def _persist(connection: Connection, decision: TextClause) -> None:
    """Decide over a transaction as soon as the server has noticed that its session is gone."""
    for _ in range(100):
        try:
            connection.execute(decision)
        except DBAPIError as error:
            if error.orig.args[0] not in STILL_OWNED:
                raise
            time.sleep(0.02)
        else:
            return


def load_data(pen: Pen) -> None:
    """Write events by LOAD DATA."""
    rows = pen.rows(pen.key(), pen.dice.randint(1, 20))
    with tempfile.NamedTemporaryFile("w") as file:
        file.writelines(f"{row['part']}\t{row['key']}\t{row['n']}\n" for row in rows)
        file.flush()
        load = f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE events (part, `key`, n)"
        pen.connection.execute(text(load))
    pen.pause(THINKING / 5)


def upsert(pen: Pen) -> None:
    """Write events of which one is there already."""
    first, second = pen.rows(pen.key(), 2)
    pen.write([first])
    known = insert(events).values([first, second])
    pen.connection.execute(known.on_duplicate_key_update(n=events.c.n))
    pen.pause(THINKING / 5)


def severed(pen: Pen) -> None:
    """Lose the line to the server in the middle."""
    pen.append(pen.key())
    pen.pause(THINKING / 10)
    pen.cut(pen.connection.connection._sock.fileno())  # noqa: SLF001 - the driver has no other


KINDS = (prepared, load_data, upsert, severed)
