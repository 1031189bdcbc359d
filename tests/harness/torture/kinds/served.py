"""Kinds of writers that databases with a server have."""

from threading import Thread

from harness.torture.pen import Pen


def killed(pen: Pen) -> None:
    """Be ended by the server at any moment: while writing, while thinking, while committing."""
    session = pen.session()
    killer = Thread(target=pen.kill, args=(session,))
    pen.append(pen.key())
    killer.start()
    try:
        pen.pause(0.003)
        pen.commit()
    finally:
        killer.join()
        pen.lose()  # it may die in the pool, and somebody else of it


KINDS = (killed,)
