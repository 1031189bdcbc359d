"""What a consumer says of its work, to its log and by metrics, and which event an error names."""

import logging
from dataclasses import make_dataclass

import httpx
import pytest
from harness.command_line import invoke
from harness.deliveries import Poison, Rival, effects, event, failing, write, write_page
from harness.stores import NAME, call
from prometheus_client import CollectorRegistry, generate_latest

from zeroeventhub import FIRST, Client, Event, Failures
from zeroeventhub.errors import Halted, TokenChanged
from zeroeventhub.telemetry import lag_collector

SECRET = "the customer's card is 4111"


def errors(caplog):
    """Return the ERROR records of consumers, each with its consumer and its partition."""
    found = [one for one in caplog.records if one.levelno >= logging.ERROR]
    return [(one.getMessage(), one.consumer, one.partition) for one in found]


def test_log_never_has_the_words_of_a_handler(shop, caplog):
    """The log names consumer, partition and an exception's type; its text is in the cause alone."""
    caplog.set_level(logging.DEBUG, "zeroeventhub")  # drivers log the values of statements

    def refuse(*_):
        raise Poison(SECRET)

    shop.feed.publish(event(1))
    with pytest.raises(Halted, match="Poison") as caught:
        shop.run(refuse, failures=Failures(tries=2))
    (again,) = [one for one in caplog.records if "Trying again" in one.getMessage()]
    assert (again.levelname, again.consumer, again.partition) == ("WARNING", "billing", 0)
    assert SECRET in str(caught.value.__cause__)
    assert SECRET not in str(caught.value)
    assert all(SECRET not in one.getMessage() for one in caplog.records)
    assert [where for _, *where in errors(caplog)] == [["billing", 0]]


def test_each_dead_letter_is_an_error_in_the_log(sync_shop, caplog):
    """The log names a letter's place, id and exception; the letter holds the event and more."""
    shop, events = sync_shop, [event(1, "k"), event(2, "other"), event(3, "k")]
    shop.feed.publish(*events)
    shop.run(failing(1), failures=Failures(tries=1, then="set-aside", hold_back=True))
    failed, held = errors(caplog)
    assert failed[1:] == held[1:] == ("billing", 0)
    start = "Event {0} of 3 after cursor '_first' (id 'e{0}') is a dead letter: "
    assert failed[0] == f"{start.format(1)}applying it raised Poison."
    assert held[0].startswith(f"{start.format(3)}it was held back")
    letters = call(shop.store, shop.store.dead_letters.letters)
    assert [(one.event, one.key) for one in letters] == [(events[0], "k"), (events[2], "k")]
    place = "zeroeventhub: event 1 of 3 after cursor '_first' (id 'e1')"
    assert letters[0].error == f"harness.deliveries.Poison: event 1 is poison\n{place}"
    assert "in apply" in letters[0].traceback


def test_process_that_waits_for_leases_says_so_once(sync_shop, caplog):
    """After a kill, even a program that sets up no log says why nothing happens for a while."""
    shop = sync_shop
    shop.feed.publish(event(1))
    call(shop.store, shop.store.leases.claim, "dead", [0], seconds=2, share=True, name="billing")
    shop.run(write, lease=1)
    (waiting,) = [one for one in caplog.records if "free 1 s after" in one.getMessage()]
    assert (waiting.levelname, waiting.consumer) == ("WARNING", "billing")
    assert shop.landed() == [1]


def test_record_that_is_kept_keeps_no_error(sync_shop, caplog):
    """Records have the texts of errors, which refer to a page and to whatever handles it."""
    caplog.set_level(logging.INFO, "zeroeventhub")
    shop = sync_shop
    shop.feed.publish(*map(event, range(3)))
    shop.feed.trouble[0, FIRST] = [TokenChanged("The partitions have changed.")]
    shop.run(write_page, observer=Rival(lambda: shop.put("1")))
    assert shop.landed() == [1, 2]
    assert "The partitions have changed." in caplog.messages
    assert any("has moved since this page" in message for message in caplog.messages)
    arguments = [one for record in caplog.records for one in record.args or ()]
    assert not any(isinstance(one, BaseException) for one in arguments)


def test_open_dead_letters_are_a_gauge(sync_shop):
    """Prometheus shows how many dead letters a consumer has in a partition."""
    shop = sync_shop
    shop.feed.publish(*map(event, range(3)))
    shop.run(failing(0, 2), failures=Failures(tries=1, then="set-aside"))
    registry = CollectorRegistry()
    line = 'zeroeventhub_consumer_dead_letters_open{consumer="billing",partition="0"}'
    with httpx.Client() as http:
        registry.register(lag_collector(Client(shop.url, http), shop.store, "billing"))
        assert f"{line} 2.0" in generate_latest(registry).decode()


THIRD = "at event 3 of 4 after cursor '0' (id 'e3')"
Numbered = make_dataclass("Numbered", [("n", int)])


def halt(shop, apply, *events, **options):
    """Let a consumer halt; return what it says."""
    shop.feed.publish(*(events or [event(n, str(n)) for n in range(1, 5)]))
    shop.put("0")
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
    shop.put("0")
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
