"""Which event of a page an error names: in Halted, in the log, in the store and in dead letters."""

from dataclasses import make_dataclass

import pytest
from harness.command_line import invoke
from harness.deliveries import Poison, effects, event, failing
from harness.stores import NAME, call

from zeroeventhub import Event, Failures
from zeroeventhub.errors import Halted

THIRD = "at event 3 of 4 after cursor '_first' (id 'e3')"
Numbered = make_dataclass("Numbered", [("n", int)])


def halt(shop, apply, *events, **options):
    """Let a consumer halt; return what it says."""
    shop.feed.publish(*(events or [event(n, str(n)) for n in range(1, 5)]))
    with pytest.raises(Halted) as caught:
        shop.run(apply, failures=Failures(tries=1), **options)
    return str(caught.value)


@pytest.mark.parametrize("argument", [Numbered, list[Numbered]])
def test_event_that_does_not_fit_is_named_by_its_place(sync_shop, caplog, argument):
    """Halted and the log name the event that cannot be decoded, alone or in a list."""

    def apply(connection, given): ...

    apply.__annotations__ = {"given": argument}
    wrong = Event.of({"specversion": "1.0", "id": "e3", "n": "three"})
    said = halt(sync_shop, apply, event(1), event(2), wrong, event(4))
    assert said.endswith(f"The last one raised ProtocolError {THIRD}.")
    assert said in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("lanes", [1, 3])
def test_event_of_a_handler_that_raises_is_named(either_shop, lanes):
    """The event is counted in the page as it was read, also where a lane has a part of it."""
    assert f"Poison {THIRD}." in halt(either_shop, failing(3), lanes=lanes)


def test_event_after_those_that_the_inbox_drops_is_named(sync_shop):
    """Events that the inbox drops count."""
    sync_shop.feed.exactly_once = False
    events = (event(1), event(1), event(3), event(4))
    assert f"Poison {THIRD}." in halt(sync_shop, failing(3), *events)


def test_coroutine_function_names_its_event(async_shop):
    """The event of an async handler is named as well."""

    async def apply(connection, one: Event):
        await connection.execute(effects.insert().values(n=one.data["n"]))
        if one.data["n"] == 3:
            raise Poison

    assert f"Poison {THIRD}." in halt(async_shop, apply)


@pytest.mark.parametrize("argument", [object, list[Numbered]])
def test_no_event_is_named_where_several_are_given(sync_shop, argument):
    """A function that gets a page or a list is to blame for none of its events in particular."""

    def apply(connection, given):
        raise Poison

    apply.__annotations__ = {"given": argument}
    assert halt(sync_shop, apply).endswith("The last one raised Poison.")


def test_letter_keeps_the_place_of_its_event(sync_shop, sqlite_url, caplog):
    """A dead letter has the place where its event was, and keeps it when a retry fails as well."""
    shop = sync_shop
    shop.feed.publish(*map(event, range(1, 5)))
    shop.run(failing(3), failures=Failures(tries=2, then="set-aside"))
    (warning,) = [one.getMessage() for one in caplog.records if "Trying again" in one.getMessage()]
    assert warning.startswith(f"Poison was raised {THIRD}. Trying again in ")
    for tries in (2, 4):
        (letter,) = call(shop.store, shop.store.dead_letters.letters)
        assert (letter.tries, letter.error.count(THIRD.removeprefix("at "))) == (tries, 1)
        listed = invoke("dead-letters", "list", "--store", sqlite_url, "--consumer", NAME).stdout
        assert listed.endswith(f"Poison: event 3 is poison, {THIRD}\n")
        call(shop.store, shop.store.dead_letters.retry)
        shop.run(failing(3), failures=Failures(tries=2, then="set-aside"))
