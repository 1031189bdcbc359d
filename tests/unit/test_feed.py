"""The port of a feed: its sync and its async form are the same."""

from inspect import getmembers, isfunction, signature

import pytest

from zeroeventhub.errors import Unavailable
from zeroeventhub.feed import (
    ArchiveMiss,
    AsyncExtendedFeed,
    AsyncFeed,
    ExtendedFeed,
    Feed,
    hold_part,
)


def methods(port):
    """The public methods of a port, with what they take and return."""
    found = getmembers(port, isfunction)
    return {name: signature(method) for name, method in found if not name.startswith("_")}


def test_ports_are_alike():
    """Both forms of a port have the same methods, described at the sync one; an extended feed takes
    what every feed takes.
    """
    assert methods(Feed) == methods(AsyncFeed)
    assert methods(ExtendedFeed) == methods(AsyncExtendedFeed)
    assert all(getattr(ExtendedFeed, name).__doc__ for name in methods(ExtendedFeed))
    plain = methods(Feed)["read"].parameters
    extended = methods(ExtendedFeed)["read"].parameters
    assert [*extended][: len(plain)] == [*plain]
    more = [*extended.values()][len(plain) :]
    assert more
    assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in more)


def test_parts_of_a_question_are_kept_up_to_a_number():
    """Each part that was fetched is held; a question that needs too many is refused for now."""
    held = []
    for number in range(10_000):
        hold_part(held, number)
    assert held == [*range(10_000)]
    with pytest.raises(Unavailable, match="too many parts") as raised:
        hold_part(held, ArchiveMiss(dict).load())
    assert raised.value.retry_after == 60
