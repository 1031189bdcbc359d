"""Kinds of writers that only PostgreSQL has."""

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert

from harness.torture.kinds.portable import THINKING
from harness.torture.pen import Pen
from harness.torture.schema import events


def prepared(pen: Pen) -> None:
    """Prepare the transaction, and let another session decide over it."""
    for key in pen.keys(2):
        pen.append(key)
    token = pen.token()
    pen.connection.execute(text(f"PREPARE TRANSACTION '{token}'"))
    if pen.dice.random() < 0.5:
        pen.lose()
    pen.pause(THINKING)
    outcome = pen.dice.choice(("COMMIT", "COMMIT", "ROLLBACK"))
    with pen.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
        other.execute(text(f"{outcome} PREPARED '{token}'"))


def copy(pen: Pen) -> None:
    """Write events by COPY."""
    rows = pen.rows(pen.key(), pen.dice.randint(1, 20))
    cursor = pen.connection.connection.cursor()
    with cursor, cursor.copy("COPY events (part, key, n) FROM STDIN") as line:
        for row in rows:
            line.write_row([row["part"], row["key"], row["n"]])
            pen.pause(THINKING / 50)


def upsert(pen: Pen) -> None:
    """Write events of which one is there already."""
    first, second = pen.rows(pen.key(), 2)
    pen.write([first])
    known = insert(events).values([first, second])
    pen.connection.execute(known.on_conflict_do_nothing())
    pen.pause(THINKING / 5)


def severed(pen: Pen) -> None:
    """Lose the line to the server in the middle, or with the commit on its way."""
    pen.append(pen.key())
    line = pen.connection.connection.pgconn
    if pen.dice.random() < 0.5:
        line.send_query(b"COMMIT")
    pen.cut(line.socket)


KINDS = (prepared, copy, upsert, severed)
