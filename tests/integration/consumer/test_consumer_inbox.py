"""The inbox drops events that were applied before, in the transaction that applies the others."""

import logging

import pytest
from harness.deliveries import Poison, event, failing, write_page
from sqlalchemy import Connection

from zeroeventhub import Event, Failures
from zeroeventhub.errors import ConfigurationError


def taking_events(apply):
    """Say that a function takes events."""

    def applying(connection: Connection, one: Event) -> None:
        apply(connection, one)

    return applying


def test_event_that_comes_again_is_dropped(shop):
    """Within a page and in a later one, only the first of those with one id is applied."""
    deliveries = shop.to(write_page, inbox=True)
    deliveries.deliver(shop.step(event(1), event(2), event(1)))
    deliveries.deliver(shop.step(event(2), event(3), to="2"))
    assert shop.landed() == [1, 2, 3]
    assert shop.observer["duplicate"] == [[1], [1]]
    assert shop.observer["committed"] == [[3], [2]]


def test_page_of_nothing_new_moves_the_cursor(shop):
    """Where every event was seen, apply is not called, and the cursor moves on."""
    deliveries = shop.to(write_page, inbox=True)
    deliveries.deliver(shop.step(event(1)))
    shop.to(lambda *_: pytest.fail("It was called."), inbox=True).deliver(
        shop.step(event(1), to="2")
    )
    assert (shop.landed(), shop.place().cursor) == ([1], "2")


def test_event_whose_page_failed_is_not_taken_for_seen(shop):
    """What was rolled back comes as new."""
    step = shop.step(event(1), event(2))
    with pytest.raises(Poison):
        shop.to(taking_events(failing(2)), inbox=True).deliver(step)
    shop.to(write_page, inbox=True).deliver(step)
    assert shop.landed() == [1, 2]


def test_event_that_was_set_aside_is_dropped_when_it_comes_again(shop):
    """An event that has a letter is not applied beside it, but from it."""
    aside = Failures(tries=1, then="set-aside")
    deliveries = shop.to(taking_events(failing(1)), inbox=True, failures=aside)
    deliveries.deliver(shop.step(event(1), event(2), set_aside=True))
    shop.to(write_page, inbox=True).deliver(shop.step(event(1), event(2), to="2"))
    assert (shop.landed(), shop.letters()) == ([2], [(1, "failed", 1)])
    shop.retry()
    shop.to(write_page, inbox=True).redeliver(shop.redelivery())
    assert (shop.landed(), shop.letters()) == ([2, 1], [])


def test_identity_is_what_the_caller_says(shop):
    """Events of any form are told apart by a function of the caller's."""

    def identity(one):
        """Tell events apart by their remainder."""
        return str(one.data["n"] % 3)

    shop.to(write_page, inbox=True, identity=identity).deliver(shop.step(*map(event, range(7))))
    assert shop.landed() == [0, 1, 2]


def test_lanes_share_the_inbox(shop):
    """In lanes too each event is applied once."""
    deliveries = shop.to(write_page, inbox=True, lanes=4)
    page = [event(n, f"k{n}") for n in range(8)]
    deliveries.deliver(shop.step(*page))
    deliveries.deliver(shop.step(*page, event(8, "k0"), to="2"))
    assert sorted(shop.landed()) == list(range(9))
    assert sum(count for (count,) in shop.observer["duplicate"]) == 8


def nameless(n):
    """An event without an id."""
    return Event.of({"n": n})


def test_event_without_an_id_is_an_error_where_an_inbox_was_asked_for(sync_shop):
    """Who asks for an inbox is told when it cannot do its work."""
    with pytest.raises(ConfigurationError, match="has no id"):
        sync_shop.to(write_page, inbox=True).deliver(sync_shop.step(event(1), nameless(2)))
    assert (sync_shop.landed(), sync_shop.place().cursor) == ([], "_first")


def test_event_without_an_id_is_applied_and_warned_of_once_otherwise(sync_shop, caplog):
    """Where only the feed has asked for an inbox, events that it cannot know are applied."""
    facade = sync_shop.to(write_page)
    facade.deliveries.inbox = True
    with caplog.at_level(logging.WARNING, "zeroeventhub.consumer"):
        facade.deliver(sync_shop.step(event(1), nameless(2), nameless(2)))
        facade.deliver(sync_shop.step(event(1), nameless(3), to="2"))
    assert sync_shop.landed() == [1, 2, 2, 3]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "without an id" in caplog.text


def test_without_an_inbox_nothing_is_remembered(sync_shop):
    """A feed that promises exactly once is taken at its word."""
    deliveries = sync_shop.to(write_page)
    deliveries.deliver(sync_shop.step(event(1)))
    deliveries.deliver(sync_shop.step(event(1), to="2"))
    assert sync_shop.landed() == [1, 1]
