"""What goes wrong on a connection: plans that print themselves, and dice that a seed makes."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Fault", "Plan", "draw"]


class Fault(StrEnum):
    """Name what breaks.

    What is truncated ends well for HTTP, as behind a proxy that took the beginning for the whole.
    A byte that is corrupt becomes 0xFF, which is not in any UTF-8 text and no digit of a chunk's
    size: what the protocol can tell. That another letter stands in an event's text, only the
    checksum of a compressed body can: one bit is flipped there and nowhere else.
    """

    NONE = "none"
    REFUSE = "refuse"
    TRUNCATED = "truncated"
    CUT = "cut"
    RESET = "reset"
    HALF_CLOSE = "half-close"
    HANG = "hang"
    CORRUPT = "corrupt"
    FLIPPED = "flipped"


@dataclass(frozen=True)
class Plan:
    """Say what happens to one connection.

    Attributes:
        fault: what breaks.
        at: how many bytes of the answer pass before it does.
        piece: how many bytes are sent at a time; 0 for all that there are.
        pause: seconds before each piece.
    """

    fault: Fault = Fault.NONE
    at: int = 0
    piece: int = 0
    pause: float = 0.0


WEIGHTS = {
    Fault.NONE: 200,
    Fault.REFUSE: 60,
    Fault.TRUNCATED: 100,
    Fault.CUT: 200,
    Fault.RESET: 200,
    Fault.HALF_CLOSE: 100,
    Fault.CORRUPT: 120,
    # Costs a client's patience, which is a second at least.
    Fault.HANG: 2,
}


def draw(dice: random.Random, length: int, *, without: Collection[Fault] = ()) -> Plan:
    """Draw a plan for an answer.

    Args:
        dice: made from a seed.
        length: how many bytes the answer has, about.
        without: faults that are not drawn.
    """
    weights = {fault: weight for fault, weight in WEIGHTS.items() if fault not in without}
    fault = dice.choices(list(weights), list(weights.values()))[0]
    piece, pause = 0, 0.0
    if dice.random() < 0.2:
        piece = dice.choice((1, 7, 64))
        pause = dice.choice((0.0, 0.0, 0.0002)) if piece > 1 else 0.0
    return Plan(fault, dice.randrange(length + 1), piece, pause)
