"""Take a whole table by COPY, and do nothing with it: the ceiling of reading."""

import psycopg

from benchmarks.actors.speaking import perform, task


def main() -> None:
    """Copy as often as it is told to."""
    wanted = task()
    with psycopg.connect(wanted["database"], autocommit=True) as connection:

        def work(_: object) -> dict[str, int]:
            events = 0
            copy = f"COPY (SELECT data FROM {wanted['table']}) TO STDOUT"  # noqa: S608
            with connection.cursor().copy(copy) as rows:
                for _row in rows:
                    events += 1
            return {"events": events}

        perform(work)


if __name__ == "__main__":
    main()
