"""What `apply` is given, as its annotations say."""

import asyncio
from collections.abc import Sequence
from dataclasses import make_dataclass
from functools import partial, wraps
from typing import Annotated, Any, TypedDict, get_origin

import msgspec
import psycopg
import pydantic
import pytest
from harness.deliveries import NAME, halting
from harness.stores import call
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from zeroeventhub import (
    AsyncConsumer,
    AsyncPendingPage,
    CloudEvent,
    Consumer,
    CursorStore,
    Event,
    Failures,
    Page,
    PendingPage,
)
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import EVERY_TYPE

ASIDE = Failures(tries=1, then="set-aside")
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


class Newer(OrderModel):
    """An order with the members of another model."""


def refuse(order):
    """Refuse every order."""
    raise ValueError("refused")


def kind_of(data):
    """Return the tag of a model."""
    return data["kind"]


TAGGED = Annotated[OrderModel, pydantic.Tag("older")] | Annotated[Newer, pydantic.Tag("placed")]
CHOSEN = Annotated[TAGGED, pydantic.Discriminator(kind_of)]


def test_union_is_told_apart_by_the_function_that_its_annotation_names(sync_shop):
    """A discriminator of pydantic chooses among models, alone, in a list and in an envelope."""
    expected = Newer(customer="ada", amount=12)
    assert given(sync_shop, CHOSEN, PLACED) == [expected]
    assert given(sync_shop, list[CHOSEN], PLACED) == [[expected]]
    (found,) = modelled(sync_shop, CloudEvent[CHOSEN], {}, {**placed(), "data": PLACED})
    assert found.data == expected


@pytest.mark.parametrize(
    "model",
    [
        Annotated[dict[str, Any], msgspec.Meta(max_length=2)],
        Annotated[OrderModel, pydantic.AfterValidator(refuse)],
        dict[str, Annotated[str, msgspec.Meta(max_length=2)] | int],
    ],
)
def test_event_that_does_not_fit_an_annotation_is_refused(sync_shop, model):
    """What an Annotated adds to a model is checked."""
    with halting(ProtocolError, "does not fit"):
        given(sync_shop, model, PLACED)


def test_annotation_that_cannot_be_a_key_changes_nothing(sync_shop):
    """A model may be annotated with what only other programs read, such as a list."""
    assert given(sync_shop, Annotated[Order, ["of others"]], PLACED) == [Order("ada", 12)]


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

    def run(apply, sentence, database="sqlite", *, is_async=False):
        path = f"/{tmp_path / 'store.db'}" if database == "sqlite" else ""
        driver = {"sqlite": "+aiosqlite" if is_async else "", "postgresql": "+psycopg"}[database]
        url = f"{database}{driver}://{path}"
        with pytest.raises(ConfigurationError, match=sentence):
            if is_async:
                store = CursorStore(create_async_engine(url))
                asyncio.run(AsyncConsumer(None, store, NAME).run(apply))
            else:
                Consumer(None, CursorStore(create_engine(url)), NAME).run(apply)

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
    sentence = r"first argument of apply is annotated|or use Async"
    refused(apply, sentence, database, is_async=consumer == "async")


def generator(transaction, page):
    """Yield, where nothing iterates."""
    yield page


UNFIT = [int, Page, AsyncPendingPage, list[PendingPage], Order | OrderStruct]


@pytest.mark.parametrize(
    ("apply", "sentence"),
    [
        *[(typed(Connection, it), r"apply is annotated as|cannot be decoded") for it in UNFIT],
        (typed(psycopg.Connection), r"as psycopg\.Connection\. .* is Connection or Session"),
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


async def later(transaction, page):
    """Do nothing, once this is awaited."""


async def several(transaction, page):
    """Yield, where nothing iterates."""
    yield page


@pytest.mark.parametrize(
    ("function", "sentence"),
    [(later, "async def"), (generator, "generator"), (several, "generator")],
)
def test_function_that_returns_what_never_runs_is_refused_when_it_does(
    async_shop, function, sentence
):
    """A coroutine that would never be awaited, or a generator, is an error, not silence."""

    def apply(transaction, page):
        return function(transaction, page)

    async_shop.feed.publish(Event.of(PLACED))
    with halting(ConfigurationError, sentence):
        async_shop.run(apply)


Sent = make_dataclass("Sent", FIELDS[:1])
Cancelled = make_dataclass("Cancelled", [("order", int)])
OlderOrder = make_dataclass("OlderOrder", [("who", str)])


def placed(kind="order.placed", **data):
    """A CloudEvent of a type."""
    return {"specversion": "1.0", "id": "7", "source": "/shop", "type": kind, "data": data}


def of_older(older: OlderOrder) -> Order:
    """Make an order of an older one."""
    return Order(older.who, 0)


MODELS = {
    "order.placed": Order,
    "order.sent": Sent,
    "order.placed.v1": of_older,
    "order.placed.v0": lambda data: Order(data, 1),
    EVERY_TYPE: Cancelled,
}


def modelled(shop, argument, models, *data, **options):
    """Run a consumer with models over these events; return what a function was called with."""
    calls = []
    shop.feed.publish(*map(Event.of, data))
    apply = typed(Connection, argument, act=lambda _, argument: calls.append(argument))
    shop.run(apply, models=models, **options)
    return calls


def test_model_is_chosen_by_the_type_of_an_event(shop):
    """The type chooses the dataclass of a union, and older versions become newer ones."""
    events = [
        placed(customer="ada", amount=12),
        placed("order.sent", customer="bob"),
        placed("order.placed.v1", who="eve"),
        {**placed("order.placed.v0"), "data": "old"},
        placed("order.lost", order=7),
    ]
    calls = modelled(shop, Order | Sent | Cancelled, MODELS, *events)
    expected = [Order("ada", 12), Sent("bob"), Order("eve", 0), Order("old", 1), Cancelled(7)]
    assert calls == expected


def test_pydantic_models_are_chosen_too_and_lists_are_given(sync_shop):
    """Data is validated by pydantic where a model is of it, and a list has a whole page's."""
    models = {"order.placed": OrderModel, "order.sent": OrderDataclass}
    events = [placed(customer="a", amount=1), placed("order.sent", customer="b", amount=2)]
    (found,) = modelled(sync_shop, list[OrderModel | OrderDataclass], models, *events)
    assert found == [OrderModel(customer="a", amount=1), OrderDataclass("b", 2)]


@pytest.mark.parametrize("model", [Order, OrderModel])
@pytest.mark.parametrize("models", [{}, {"order.placed": None}])
def test_envelope_is_given_with_data_of_a_model(sync_shop, model, models):
    """A CloudEvent[Model] has the envelope's attributes, and the data as the model."""
    event = {**placed(customer="a", amount=1), "time": "2026-01-01T00:00:00Z", "other": 1}
    models = dict.fromkeys(models, model)
    (found,) = modelled(sync_shop, CloudEvent[model], models, event)
    assert isinstance(found, CloudEvent)
    assert (found.id, found.type, found.time.year) == ("7", "order.placed", 2026)
    assert found.data == model(customer="a", amount=1)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (placed("order.lost"), "nothing for events of the type 'order.lost'"),
        (placed(customer="secret"), "does not fit Order"),
        ({"customer": "secret"}, "does not fit CloudEvent"),
    ],
)
def test_event_without_a_model_fails(sync_shop, event, sentence):
    """An event of a type without a model, or whose data does not fit it, is a failure."""
    with halting(ProtocolError, rf"^(?!.*secret).*{sentence}"):
        models = {"order.placed": Order, "order.sent": Sent}
        modelled(sync_shop, Order | Sent, models, event, failures=Failures(tries=1))


def test_error_of_a_function_of_models_is_its_own(sync_shop):
    """What a function raises that makes a model is the error of the handler."""

    def broken(data: dict):
        return Order(data["gone"], 1)

    with halting(KeyError, "gone"):
        options = {"failures": Failures(tries=1)}
        modelled(sync_shop, Order, {"order.placed": broken}, placed(), **options)


def expect_found(found):
    """Raise StopIteration, as `next` does in a model's own code where nothing is found."""
    if found.customer == "nobody":
        next(iter([]))
    return found


class FoundStruct(msgspec.Struct):
    """An order whose check after decoding ends as an iterator does."""

    customer: str
    __post_init__ = expect_found


class FoundModel(pydantic.BaseModel):
    """An order whose validator ends as an iterator does."""

    customer: str
    check = pydantic.model_validator(mode="after")(expect_found)


def of_found(data: Sent) -> Sent:
    """Make a model of one, or end as an iterator does."""
    return expect_found(data)


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize(
    ("argument", "models"),
    [
        (FoundStruct, {}),
        (list[FoundStruct], {}),
        (FoundModel, {}),
        (list[FoundModel], {}),
        (CloudEvent[FoundModel], {}),
        (Sent, {EVERY_TYPE: of_found}),
    ],
)
def test_model_that_raises_as_an_iterator_ends_loses_no_event(shop, argument, models, limit):
    """A StopIteration of a model is a failure of its event, and not the end of the page."""
    names = ["ada", "bob", "nobody", "eve"]
    is_enveloped = bool(models) or get_origin(argument) is CloudEvent
    events = [placed(customer=one) if is_enveloped else {"customer": one} for one in names]
    modelled(shop, argument, models, *events, limit=limit, failures=ASIDE)
    (letter,) = call(shop.store, shop.store.dead_letters.letters)
    assert b"nobody" in letter.event.raw


@pytest.mark.parametrize("argument", [Sent, PendingPage, CloudEvent[Sent], list[Event]])
def test_model_that_apply_does_not_take_is_refused(sync_shop, argument):
    """A model for a type of events, or what a function returns, is named by the annotation."""
    for model in (Order, of_older):
        with pytest.raises(ConfigurationError, match=r"`models` has Order for events of the type"):
            modelled(sync_shop, argument, {"order.placed": model})


def test_union_of_dataclasses_needs_models(refused):
    """A union that cannot be told apart is refused in a sentence that says what to give."""
    refused(typed(Connection, Order | Sent), "`models` says which type of events is which")
