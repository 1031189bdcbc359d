"""How far a consumer has come, as it registers that with its publisher."""

from contextlib import contextmanager

import pytest
from harness.deliveries import opened
from harness.registered import age, fill, heard, served, source
from harness.shop import metadata, orders
from harness.statements import add
from harness.stores import call
from harness.waiting import until

from zeroeventhub import Capacity, Client
from zeroeventhub.consumer import progress_reporter as progress
from zeroeventhub.errors import Forbidden


@pytest.fixture
def any_shop(any_engine):
    """An engine of a database with twenty orders."""
    metadata.create_all(any_engine)
    fill(any_engine)
    return any_engine


@pytest.fixture
def any_feed(any_shop):
    """The feed over it."""
    return source().bind(any_shop)


@contextmanager
def consuming(engine, folder, *, is_async=False):
    """Serve the feed; yield the shop of a consumer of it."""
    url = f"sqlite:///{folder}/consumer.db"
    capacity = Capacity(wait_seconds=0.2)  # a consumer that is told to stop waits so long
    with opened(url, is_async=is_async) as shop, served(engine, capacity=capacity) as shop.url:
        yield shop


def do_nothing(_connection, _event):
    """Apply an event to nothing."""


@pytest.mark.parametrize("way", ["run", "async run", "loop"])
def test_consumer_registers_what_it_has_committed(any_shop, any_feed, tmp_path, way):
    """At its end the publisher knows its cursors; of a consumer that was not asked to, nothing."""
    with consuming(any_shop, tmp_path, is_async=way == "async run") as shop:
        for registers in (False, True):
            assert any_feed.registered() == []
            options = {"limit": 4, "register_progress": registers}
            if way == "loop":
                with shop.pages(**options) as pages:
                    for page in pages:
                        with shop.engine.begin() as connection:
                            page.commit(connection)
            else:
                shop.run(do_nothing, **options)
        cursors = call(shop.store, shop.store.cursors)
    assert {one.partition: one.cursor for one in any_feed.registered()} == cursors
    assert any_feed.plan_trim(below=21).until == 20


@pytest.mark.slow
def test_consumer_registers_while_it_runs(any_shop, any_feed, tmp_path, monkeypatch):
    """A consumer at the head registers its progress, and again while no event comes."""
    monkeypatch.setattr(progress, "INTERVAL", 0.05)
    monkeypatch.setattr(progress, "UNCHANGED", 0.2)
    with consuming(any_shop, tmp_path) as shop:
        running = shop.start(do_nothing, register_progress=True)
        until(lambda: {*heard(any_feed).values()} == {19, 20}, "it is heard of at the head")
        add(any_shop, orders, {"part": 0, "data": {"n": 20}})
        until(lambda: heard(any_feed).get(("", "billing", 0)) == 21, "it tells of what comes")
        age(any_shop, 3600)
        until(lambda: all(one.heard < 60 for one in any_feed.registered()), "it tells again")
        running.stop()


def test_publisher_that_does_not_hear_keeps_no_consumer_from_consuming(any_shop, tmp_path, caplog):
    """Where registering is refused, the consumer goes on, and its log says so once."""

    class Refused(Client):
        def register_progress(self, *given):
            raise Forbidden("It is not wanted.")

    with consuming(any_shop, tmp_path) as shop:
        shop.run(do_nothing, register_progress=True, client=Refused)
        assert len(call(shop.store, shop.store.cursors)) == 2
    assert "It is not wanted." in caplog.text
    assert caplog.text.count("progress was not reported to the publisher") == 1
