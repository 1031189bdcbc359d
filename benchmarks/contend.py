"""Append to keys that many contend for, on one database, and check every version behind it.

    PYTHONPATH=tests python -m benchmarks.contend postgresql+psycopg://… [--appends 1000000]

Sixteen handlers load what has come to a key since they last looked, append an event at the version
that they have read, and try again until they are let in. The table `append_log` of the database is
dropped first.
"""

import argparse
import sys

from benchmarks.suites.append import HANDLERS, handled


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contend",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("database", help="the URL of a database")
    parser.add_argument("--appends", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=32)
    options = parser.parse_args()
    run = handled(options.database, options.appends, options.keys, remembers=True)
    sys.stdout.write(
        f"{run.events:,} appends to {options.keys:,} keys by {HANDLERS} handlers, "
        f"{run.more['conflicts']:,} tried again, {run.rate:,.0f} events/s; "
        "versions without gap and double\n"
    )


if __name__ == "__main__":
    main()
