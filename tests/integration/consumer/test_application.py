"""What `apply` is given: as its annotations say, or refused in a sentence."""

import asyncio
from collections.abc import Sequence
from dataclasses import make_dataclass
from functools import partial, wraps
from typing import Any, TypedDict

import msgspec
import psycopg
import pydantic
import pytest
from harness.deliveries import NAME, halting
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from zeroeventhub import AsyncConsumer, AsyncPendingPage, Consumer, CursorStore, Event, PendingPage
from zeroeventhub.errors import ConfigurationError, ProtocolError

FIELDS = [("customer", str), ("amount", int)]
PRICED = [("customer", str), ("amount", int, pydantic.Field(gt=0))]
KIND = {"tag_field": "kind", "frozen": True}

Order = make_dataclass("Order", FIELDS)
OrderStruct = msgspec.defstruct("OrderStruct", FIELDS, tag="placed", **KIND)
Cancellation = msgspec.defstruct("Cancellation", FIELDS[:1], tag="cancelled", **KIND)


class OrderDict(TypedDict):
    """An order, as a dict."""

    customer: str
    amount: int


OrderModel = pydantic.create_model("OrderModel", **dict(FIELDS))
OrderDataclass = pydantic.dataclasses.dataclass(make_dataclass("OrderDataclass", PRICED))

PLACED = {"kind": "placed", "customer": "ada", "amount": 12}
CANCELLED = {"kind": "cancelled", "customer": "ada"}


def typed(transaction=None, argument=None, *, is_async=False, act=lambda *both: None):
    """Make a function that is annotated in a way."""
    if is_async:

        async def apply(transaction, argument): ...

    else:

        def apply(transaction, argument):
            act(transaction, argument)

    hints = {"transaction": transaction, "argument": argument}
    apply.__annotations__ = {name: hint for name, hint in hints.items() if hint is not None}
    return apply


def given(shop, argument, *data):
    """Run a consumer over these events; return what it has called a function with."""
    calls = []
    shop.feed.publish(*map(Event.of, data))
    shop.run(typed(Connection, argument, act=lambda _, argument: calls.append(argument)))
    return calls


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Event, Event.of(PLACED)),
        (Order, Order("ada", 12)),
        (OrderStruct, OrderStruct("ada", 12)),
        (OrderDict, {"customer": "ada", "amount": 12}),
        (OrderModel, OrderModel(customer="ada", amount=12)),
        (OrderDataclass, OrderDataclass("ada", 12)),
        (dict[str, Any], PLACED),
    ],
)
def test_event_is_decoded_as_the_model_asked_for(sync_shop, model, value):
    """Each event comes as the type that it was asked for in, alone or in a list of a page."""
    assert given(sync_shop, model, PLACED, PLACED) == [value, value]
    assert given(sync_shop, list[model], PLACED, PLACED) == [[value, value]]


def test_union_is_told_apart_by_its_tag_and_a_bare_list_has_events(sync_shop):
    """Of structs with tags each event becomes the one that it is; without a model, an Event."""
    one, other = OrderStruct("ada", 12), Cancellation("ada")
    assert given(sync_shop, OrderStruct | Cancellation, PLACED, CANCELLED) == [one, other]
    for several in (list, Sequence[Event]):
        assert given(sync_shop, several, PLACED) == [[Event.of(PLACED)]]


@pytest.mark.parametrize(
    ("model", "amount", "reason"),
    [
        *[(model, "secret", "") for model in (Order, OrderStruct, OrderModel)],
        (OrderDataclass, -1, ".*greater than 0"),
    ],
)
def test_event_that_does_not_fit_is_named_without_its_data(sync_shop, model, amount, reason):
    """What does not fit is said, by pydantic where it is asked; what the event holds is not."""
    said = rf"^(?!.*secret)An event does not fit {model.__name__}: .*amount{reason}"
    with halting(ProtocolError, said):
        given(sync_shop, model, PLACED, {**PLACED, "amount": amount})
    assert sync_shop.cursor() == "_first"


@pytest.mark.parametrize(
    "hints", [(), (Connection, PendingPage), (Any, object), (Connection | Session, PendingPage)]
)
def test_page_and_connection_are_given_by_default(sync_shop, hints):
    """A function that says nothing, or asks for them, gets the page and a connection."""
    calls = []
    sync_shop.feed.publish(Event.of(PLACED), Event.of(PLACED))
    sync_shop.run(typed(*hints, act=lambda *both: calls.append(both)))
    ((connection, page),) = calls
    assert isinstance(connection, Connection)
    assert (page.partition, page.events) == (0, (Event.of(PLACED),) * 2)


class Applier:
    """An object that applies."""

    def __init__(self):
        self.calls = []

    def __call__(self, session: Session, order: Order, *, end="") -> None:
        """Want an order."""
        self.calls.append((isinstance(session, Session), order))


@pytest.mark.parametrize(
    "choose",
    [
        lambda applier: applier,
        lambda applier: applier.__call__,
        lambda applier: partial(applier, end="e"),
        lambda applier: wraps(applier.__call__)(lambda *both: applier(*both, end="e")),
    ],
    ids=["object", "method", "partial", "wrapper"],
)
def test_every_callable_is_understood(sync_shop, choose):
    """Objects, methods, partial functions and wrappers say what they want like functions."""
    applier = Applier()
    sync_shop.feed.publish(Event.of(PLACED))
    sync_shop.run(choose(applier))
    assert applier.calls == [(True, Order("ada", 12))]


# What is refused before anything is read.


@pytest.fixture
def refused(tmp_path):
    """A function that runs a consumer with a function that it must refuse."""

    def run(apply, sentence, database="sqlite", *, is_async=False, **options):
        path = f"/{tmp_path / 'store.db'}" if database == "sqlite" else ""
        driver = {"sqlite": "+aiosqlite" if is_async else "", "postgresql": "+psycopg"}[database]
        url = f"{database}{driver}://{path}"
        with pytest.raises(ConfigurationError, match=sentence):
            if is_async:
                store = CursorStore(create_async_engine(url))
                asyncio.run(AsyncConsumer(None, store, NAME).run(apply, **options))
            else:
                Consumer(None, CursorStore(create_engine(url)), NAME).run(apply, **options)

    return run


@pytest.mark.parametrize(
    ("consumer", "database", "function", "transaction"),
    [
        ("sync", "sqlite", "sync", psycopg.Connection),
        ("sync", "postgresql", "sync", psycopg.AsyncConnection),
        ("sync", "sqlite", "async", AsyncConnection),
        ("async", "sqlite", "async", Session),
        ("async", "postgresql", "async", psycopg.Connection),
        ("async", "sqlite", "sync", AsyncSession),
    ],
)
def test_transaction_that_cannot_be_had_is_refused(
    refused, consumer, database, function, transaction
):
    """A kind that the consumer, the function or the database cannot have is refused at once."""
    apply = typed(transaction, is_async=function == "async")
    sentence = r"can be given one that is|or use Async"
    refused(apply, sentence, database, is_async=consumer == "async")


def generator(transaction, page):
    """Yield, where nothing iterates."""
    yield page


UNFIT = [int, AsyncPendingPage, list[PendingPage], Order | OrderStruct]


@pytest.mark.parametrize(
    ("apply", "sentence"),
    [
        *[(typed(Connection, it), r"apply asks to be given|cannot be decoded") for it in UNFIT],
        (lambda one: None, "two arguments"),
        (lambda one, two, three: None, "two arguments"),
        (generator, "generator"),
        ("apply", "function"),
        (typed("Unheard"), "cannot be understood"),
    ],
)
def test_function_that_cannot_be_called_is_refused(refused, apply, sentence):
    """What is no function of two arguments, or wants what no event can be made into, is refused."""
    refused(apply, sentence)


def test_function_that_returns_a_coroutine_is_refused_when_it_does(async_shop):
    """A coroutine that would never be awaited is an error, not silence."""

    async def later(transaction, page): ...

    def apply(transaction, page):
        return later(transaction, page)

    async_shop.feed.publish(Event.of(PLACED))
    with halting(ConfigurationError, "async def"):
        async_shop.run(apply)
