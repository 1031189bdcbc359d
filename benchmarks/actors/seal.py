"""Seal a table into a new archive each time, or into one that stays, and trim the table."""

from tempfile import TemporaryDirectory

from sqlalchemy import create_engine

from benchmarks.actors.speaking import perform, task
from benchmarks.events import feed_table
from benchmarks.publishing import seal


def main() -> None:
    """Seal as often as it is told to."""
    wanted = task()
    engine = create_engine(wanted["database"])
    table = feed_table(wanted["table"], "jsonb")

    def work(order: dict[str, str]) -> dict[str, int]:
        with TemporaryDirectory(dir=wanted["folder"]) as folder:
            feed, sealed = seal(engine, table, order.get("archive", folder))
            if "archive" in order:
                feed.trim(feed.plan_trim(below=2**62), rows=20_000)
            return {"events": sealed.events, "bytes": sealed.size}

    perform(work)


if __name__ == "__main__":
    main()
