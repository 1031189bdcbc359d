"""What `apply` is given: as its annotations say, or refused in a sentence."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import psycopg
import pydantic
import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from zeroeventhub import AsyncPendingPage, Event, PendingPage
from zeroeventhub._follow import Deliver, Place
from zeroeventhub.consumer.applying.application import Application
from zeroeventhub.consumer.applying.transaction import Kind
from zeroeventhub.errors import ConfigurationError, Fenced, ProtocolError
from zeroeventhub.protocol import Page

SYNC = create_engine("sqlite://")
ASYNC = create_async_engine("sqlite+aiosqlite://")
POSTGRESQL = create_engine("postgresql+psycopg://")
ASYNC_POSTGRESQL = create_async_engine("postgresql+psycopg://")


@dataclass
class Order:
    """An order, as a dataclass."""

    customer: str
    amount: int


class OrderStruct(msgspec.Struct, frozen=True, tag_field="kind", tag="placed"):
    """An order, as a struct."""

    customer: str
    amount: int


class Cancellation(msgspec.Struct, frozen=True, tag_field="kind", tag="cancelled"):
    """The end of an order."""

    customer: str


class OrderDict(TypedDict):
    """An order, as a dict."""

    customer: str
    amount: int


class OrderModel(pydantic.BaseModel):
    """An order, as a model."""

    customer: str
    amount: int


@pydantic.dataclasses.dataclass
class OrderDataclass:
    """An order, as a dataclass that pydantic validates."""

    customer: str
    amount: int = pydantic.Field(gt=0)


class OwnSession(Session):
    """A session class of the caller's own."""


def pages(*data):
    """A page of events."""
    page = Page([Event.of(one) for one in data], "2")
    return PendingPage.of(None, Deliver(0, Place("1"), page))


PLACED = {"kind": "placed", "customer": "ada", "amount": 12}
CANCELLED = {"kind": "cancelled", "customer": "ada"}


def arguments(apply, *data, engine=SYNC):
    """What a function is called with for a page."""
    return list(Application.of(apply, engine).arguments(pages(*data)))


def nothing_said(transaction, page):
    """Say nothing."""


def wants_page(transaction: Connection, page: PendingPage) -> None:
    """Want a page."""


def wants_anything(transaction: Any, page: object) -> None:
    """Want whatever there is."""


async def wants_async_page(transaction: AsyncConnection, page: AsyncPendingPage) -> None:
    """Want a page, in a coroutine."""


class Applier:
    """An object that applies, and one with a method that does."""

    def __call__(self, session: Session, event: Event) -> None:
        """Want an event."""

    def method(self, session: Session, order: Order) -> None:
        """Want an order."""

    async def coroutine(self, session: AsyncSession, order: Order) -> None:
        """Want an order, in a coroutine."""


def with_option(option: str, session: Session, event: Event) -> None:
    """Want an option before all else."""


@functools.wraps(wants_page)
def wrapped(*arguments, **named):
    """Take anything, and speak for another."""


@pytest.mark.parametrize("apply", [nothing_said, wants_page, wants_anything, lambda *both: None])
def test_page_is_given_by_default(apply):
    """Who says nothing, or asks for it, gets the page and a connection."""
    application = Application.of(apply, SYNC)
    assert (application.kind, application.is_async) == (Kind.CONNECTION, False)
    page = pages(PLACED, PLACED)
    assert list(application.arguments(page)) == [page]


@pytest.mark.parametrize(
    ("apply", "kind", "argument"),
    [
        (Applier(), Kind.SESSION, Event.of(PLACED)),
        (Applier().method, Kind.SESSION, Order("ada", 12)),
        (functools.partial(with_option, "o"), Kind.SESSION, Event.of(PLACED)),
        (functools.partial(with_option, option="o"), None, None),
        (wrapped, Kind.CONNECTION, pages(PLACED)),
    ],
)
def test_every_callable_is_understood(apply, kind, argument):
    """Objects, methods, partial functions and wrappers say what they want like functions."""
    if kind is None:
        with pytest.raises(ConfigurationError, match="two arguments"):
            Application.of(apply, SYNC)
        return
    assert Application.of(apply, SYNC).kind is kind
    assert arguments(apply, PLACED) == [argument]


def test_partial_by_name_leaves_the_other_arguments_in_their_places():
    """An argument that was given by name is none of the two."""

    def apply(session: Session, event: Event, *, option: str) -> None:
        """Want an option by name."""

    application = Application.of(functools.partial(apply, option="o"), SYNC)
    assert application.kind is Kind.SESSION
    assert arguments(functools.partial(apply, option="o"), PLACED) == [Event.of(PLACED)]


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Event, Event.of(PLACED)),
        (Order, Order("ada", 12)),
        (OrderStruct, OrderStruct("ada", 12)),
        (OrderDict, {"customer": "ada", "amount": 12}),
        (OrderModel, OrderModel(customer="ada", amount=12)),
        (OrderDataclass, OrderDataclass("ada", 12)),
        (OrderStruct | Cancellation, OrderStruct("ada", 12)),
        (dict[str, Any], PLACED),
    ],
)
def test_event_is_decoded_as_the_model_asked_for(model, value):
    """Each event comes as the type that it was asked for in, alone or in a list of a page."""

    def one(transaction: Connection, event: model) -> None:
        """Want one."""

    def all_of_them(transaction: Connection, events: list[model]) -> None:
        """Want a list."""

    def sequence(transaction: Connection, events: Sequence[model]) -> None:
        """Want a sequence."""

    assert arguments(one, PLACED, PLACED) == [value, value]
    assert arguments(all_of_them, PLACED, PLACED) == [[value, value]]
    assert arguments(sequence, PLACED) == [[value]]


def test_bare_list_is_one_of_events():
    """A list of nothing in particular has events."""

    def apply(transaction, events: list) -> None:
        """Want a list."""

    assert arguments(apply, PLACED) == [[Event.of(PLACED)]]


def test_union_is_told_apart_by_its_tag():
    """Of structs with tags, each event becomes the one that it is."""

    def apply(transaction: Connection, event: OrderStruct | Cancellation) -> None:
        """Want one of two."""

    assert arguments(apply, PLACED, CANCELLED) == [OrderStruct("ada", 12), Cancellation("ada")]


@pytest.mark.parametrize("model", [Order, OrderStruct, OrderDict, OrderModel, OrderDataclass])
def test_event_that_does_not_fit_is_named_without_its_data(model):
    """What does not fit is said; what the event holds is not."""

    def apply(transaction: Connection, event: model) -> None:
        """Want one."""

    found = Application.of(apply, SYNC).arguments(pages(PLACED, {**PLACED, "amount": "secret"}))
    next(found)
    with pytest.raises(ProtocolError, match=f"does not fit {model.__name__}: .*amount") as caught:
        next(found)
    assert "secret" not in str(caught.value)


def test_dataclass_of_pydantic_is_validated_by_pydantic():
    """The constraints of a pydantic dataclass hold."""

    def apply(transaction: Connection, event: OrderDataclass) -> None:
        """Want one."""

    with pytest.raises(ProtocolError, match="greater than 0"):
        arguments(apply, {**PLACED, "amount": -1})


def typed(transaction, *, is_async=False, argument=PendingPage):
    """A function that asks for a kind of transaction."""
    if is_async:

        async def apply(given, page): ...

    else:

        def apply(given, page): ...

    apply.__annotations__ = {"given": transaction, "page": argument}
    return apply


@pytest.mark.parametrize(
    ("engine", "is_async", "transaction", "kind"),
    [
        (SYNC, False, Connection, Kind.CONNECTION),
        (SYNC, False, Session, Kind.SESSION),
        (SYNC, False, OwnSession, Kind.SESSION),
        (SYNC, False, Connection | Session, Kind.CONNECTION),
        (POSTGRESQL, False, psycopg.Connection, Kind.DRIVER),
        (POSTGRESQL, False, psycopg.Connection[Any], Kind.DRIVER),
        (SYNC, False, AsyncConnection, None),
        (SYNC, False, psycopg.Connection, None),
        (SYNC, False, psycopg.AsyncConnection, None),
        (SYNC, False, int, None),
        (SYNC, True, AsyncConnection, None),
        (ASYNC, True, AsyncConnection, Kind.CONNECTION),
        (ASYNC, True, AsyncSession, Kind.SESSION),
        (ASYNC, True, Connection, None),
        (ASYNC, True, Session, None),
        (ASYNC, True, psycopg.AsyncConnection, None),
        (ASYNC_POSTGRESQL, True, psycopg.AsyncConnection, Kind.DRIVER),
        (ASYNC_POSTGRESQL, True, psycopg.Connection, None),
        (ASYNC, False, Connection, Kind.CONNECTION),
        (ASYNC, False, Session, Kind.SESSION),
        (ASYNC, False, AsyncConnection, None),
        (ASYNC_POSTGRESQL, False, psycopg.Connection, None),
        (ASYNC_POSTGRESQL, False, psycopg.AsyncConnection, None),
    ],
)
def test_transaction_is_of_the_kind_asked_for_or_refused(engine, is_async, transaction, kind):
    """A kind that the consumer, the function or the database cannot have is refused at once."""
    page = AsyncPendingPage if is_async else PendingPage
    apply = typed(transaction, is_async=is_async, argument=page)
    if kind is None:
        with pytest.raises(ConfigurationError, match=r"can be given one that is|or use Async"):
            Application.of(apply, engine)
    else:
        assert Application.of(apply, engine).kind is kind


def test_sessions_are_given_where_the_caller_makes_them():
    """Who says how sessions are made gets one without a word, and nothing else."""
    sessions = sessionmaker()
    assert Application.of(nothing_said, SYNC, sessions).kind is Kind.SESSION
    with pytest.raises(ConfigurationError, match="since `sessions` was given"):
        Application.of(wants_page, SYNC, sessions)


@pytest.mark.parametrize("argument", [int, str, SYNC.__class__, list[int], AsyncPendingPage, set])
def test_argument_that_cannot_be_is_refused(argument):
    """What no event can be made into is refused at once."""
    with pytest.raises(ConfigurationError, match=r"apply asks to be given"):
        Application.of(typed(Connection, argument=argument), SYNC)


def test_model_that_cannot_be_decoded_is_refused():
    """A union whose members nothing tells apart is refused at once."""
    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        Application.of(typed(Connection, argument=Order | OrderStruct), SYNC)


def generator(transaction, page):
    """Yield, where nobody asks."""
    yield page


@pytest.mark.parametrize(
    ("apply", "sentence"),
    [
        (lambda: None, "two arguments"),
        (lambda one: None, "two arguments"),
        (lambda one, two, three: None, "two arguments"),
        (generator, "generator"),
        ("apply", "function"),
        (typed("Unheard"), "cannot be understood"),
    ],
)
def test_function_that_cannot_be_called_is_refused(apply, sentence):
    """What is no function of two arguments is refused at once."""
    with pytest.raises(ConfigurationError, match=sentence):
        Application.of(apply, SYNC)


def test_annotation_of_another_argument_or_of_the_result_does_not_matter():
    """Only the two arguments that are given have to be understood."""

    def apply(transaction: Connection, page: PendingPage, more: "Unheard" = None) -> "Unheard": ...  # noqa: F821

    assert Application.of(apply, SYNC).kind is Kind.CONNECTION


def test_function_that_returns_a_coroutine_is_refused_when_it_does():
    """A coroutine that nobody would await is an error, not silence."""

    async def later(transaction, page):
        """Do nothing, later."""

    def apply(transaction, page):
        """Make a coroutine."""
        return later(transaction, page)

    application = Application.of(apply, ASYNC)
    with pytest.raises(ConfigurationError, match="async def"):
        application.call(None, pages(PLACED))


def test_fence_of_another_is_not_taken_for_the_own():
    """A page that apply commits itself is told apart from one that another has committed."""

    def apply(transaction, page):
        """Commit what is committed."""
        raise Fenced("The cursor has moved.")

    with pytest.raises(ConfigurationError, match="must not commit the page"):
        Application.of(apply, SYNC).call(None, pages(PLACED))
