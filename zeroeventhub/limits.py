"""How much a client takes from a feed before it gives up."""

import math
from dataclasses import dataclass, fields

from zeroeventhub.errors import ConfigurationError

__all__ = ["Limits"]

_MEBIBYTE = 1024 * 1024
_FOR_EVER = 1_000_000
_MAY_BE_ZERO = {"bytes_per_second", "grace"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bound what a client takes from a feed.

    A page that breaks a bound behind one of its checkpoints counts up to that checkpoint. Else
    it is an error: one to try again for a bound of time, a final one for a bound of size.

    Attributes:
        seconds: for a whole answer with its headers, beside the `wait` that was asked for.
        bytes_per_second: how many bytes a body has to bring over the network, on average.
        grace: seconds from the headers on in which it may be slower, beside the `wait`.
        page_bytes: the length of a page's body, unpacked.
        page_events: how many events a page may have; lines may be twice as many, and 1,000 more.
        line_bytes: the length of a line of a page, which is an event in its envelope.
    """

    seconds: float = 60.0
    bytes_per_second: float = 1000.0
    grace: float = 10.0
    page_bytes: int = 16 * _MEBIBYTE
    page_events: int = 100_000
    line_bytes: int = 8 * _MEBIBYTE

    def __post_init__(self) -> None:
        """Refuse bounds that nothing could keep, or that bound nothing.

        Raises:
            ConfigurationError: a bound is no number, negative, without an end, or zero; only
                `bytes_per_second` and `grace` may be zero.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = {int} if field.type is int else {int, float}
            least = 0 if field.name in _MAY_BE_ZERO else 1e-3
            most = math.inf if field.type is int else _FOR_EVER
            if type(value) not in kinds or not least <= value < most:
                whole = "a whole number" if field.type is int else "a number below 1,000,000"
                raise ConfigurationError(
                    f"Limits.{field.name} has to be {whole}, "
                    f"and {'not negative' if least == 0 else 'more than zero'}."
                )
