"""A feed over orders whose consumers say how far they have come."""

from sqlalchemy import update

from harness import readers
from harness.published import install
from harness.shop import orders, write
from harness.statements import execute
from harness.trimmed import position_of
from zeroeventhub import TableFeed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention


def source(**options):
    """Return a feed over orders in two partitions whose consumers may say how far they are."""
    given = {"data": "data", "partition": "part", "partitions": 2, "type": "kind"}
    given |= {"retention": Retention(), "progress": Progress()}
    return TableFeed(orders, **{**given, **options})


def fill(engine):
    """Place twenty orders, the even ones in partition 0."""
    install(source(), engine)
    write(engine, 20, partitions=2)


def served(engine, feed=None, **options):
    """Serve the feed; yield its URL."""
    return readers.mounted(feed or source(), engine, **options)


def heard(feed):
    """The position of each consumer in each partition."""
    return {
        (one.principal, one.consumer, one.partition): position_of(one.cursor)
        for one in feed.registered()
    }


def age(engine, seconds):
    """Let all that was heard have been heard so many seconds earlier."""
    table = Progress().table
    execute(engine, update(table).values(heard_at=table.c.heard_at - seconds))
