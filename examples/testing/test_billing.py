"""Tests of the consumer."""

from billing import customers, invoice, tables
from sqlalchemy import select

from zeroeventhub import Consumer, Failures
from zeroeventhub.testing import check_handler, run_to_head, store_of

ORDERS = [{"number": n, "customer": ("ada", "bob")[n % 2], "amount": 10 * n} for n in range(5)]


def test_customers_owe_what_they_ordered(event_feed, feed_client):
    """The amounts of a customer's orders are added up, also of those that come later."""
    store = store_of(tables.create_all)
    consumer = Consumer(feed_client, store, "billing")
    event_feed.append(*ORDERS)
    run_to_head(consumer, invoice)
    event_feed.append({"number": 5, "customer": "bob", "amount": 1})
    run_to_head(consumer, invoice)
    with store.engine.connect() as connection:
        assert dict(connection.execute(select(customers)).all()) == {"ada": 60, "bob": 41}


def test_trouble_of_the_feed_is_waited_out(event_feed, feed_client, feed_faults):
    """A publisher that is down for a while, and a page that is cut, do not lose an order."""
    store = store_of(tables.create_all)
    event_feed.append(*ORDERS)
    feed_faults.unavailable(retry_after=20)
    feed_faults.cut_page()
    pauses = run_to_head(Consumer(feed_client, store, "billing"), invoice)
    assert pauses[0].seconds == 20
    assert feed_faults.pending == 0
    with store.engine.connect() as connection:
        assert connection.scalar(select(customers.c.owes).where(customers.c.name == "bob")) == 40


def test_wrong_order_is_a_dead_letter(event_feed, feed_client):
    """An order that is refused is set aside with its error, and can be tried again."""
    store = store_of(tables.create_all)
    event_feed.append({"number": 9, "customer": "bob", "amount": -1}, *ORDERS)
    consumer = Consumer(feed_client, store, "billing", failures=Failures(then="set-aside"))
    run_to_head(consumer, invoice)
    with store.engine.begin() as connection:
        (letter,) = store.dead_letters.letters(connection, "billing")
        assert letter.event.data["number"] == 9
        assert letter.error.startswith("ValueError: An order has an amount")
        assert store.dead_letters.retry(connection, "billing", [letter.id]) == 1


def test_invoices_are_written_once():
    """Wherever the process is killed, each order has its effect once; wrong ones have none."""
    wrong = {"number": 9, "customer": "bob", "amount": -1}
    check_handler(invoice, ORDERS, prepare=tables.create_all, poison=[wrong])
