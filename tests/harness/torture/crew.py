"""Processes of writers, warm from round to round: many writers need more than one interpreter."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Event, Thread

from harness.torture.engines import writing_engine
from harness.torture.kinds import BULK, FAST, HURTING, Kind
from harness.torture.mix import Mix
from harness.torture.writer import Writer

PATIENCE = 90
"""Seconds after which writers that do not come to an end are given up."""

FIRST_OWN_KEY = 1000


@dataclass(frozen=True)
class Assignment:
    """Say what a crew writes, and where.

    Attributes:
        url: the database.
        seed: of all dice.
        index: which of the crews this is.
        crews: how many there are.
        mix: the writers of all crews together.
    """

    url: str
    seed: str
    index: int
    crews: int
    mix: Mix


@dataclass
class Report:
    """Say what crews have written.

    Attributes:
        transactions: how many were committed.
        kinds: how many transactions of each kind came to their end.
        failures: what no writer should meet.
    """

    transactions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Count what somebody else has written as well."""
        self.transactions += other.transactions
        self.kinds += other.kinds
        self.failures += other.failures


class Crew:
    """Hold a process whose threads write while a round lasts."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def begin(self, assignment: Assignment) -> None:
        """Start to write."""
        self._line.send(assignment)

    def end(self) -> Report:
        """Stop to write, and tell what was written.

        Raises:
            TimeoutError: the writers did not come to an end.
        """
        self._line.send(None)
        if not self._line.poll(PATIENCE):
            raise TimeoutError("The writers did not come to an end.")
        return self._line.recv()

    def close(self) -> None:
        """End the process."""
        self._line.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _serve(line: Connection) -> None:
    """Write as assigned until the other end of the line is closed."""
    try:
        while True:
            line.send(_work(line.recv(), line))
    except (EOFError, KeyboardInterrupt):
        return


def _work(assignment: Assignment, line: Connection) -> Report:
    engine = writing_engine(assignment.url, random.Random(assignment.seed))
    stop = Event()
    writers = [
        Writer(
            engine,
            kinds,
            seed=f"{assignment.seed} {assignment.index} {number}",
            # Keys of one's own: no two writers of any crew have a remainder in common.
            owned=count(FIRST_OWN_KEY + assignment.index + number * assignment.crews, 1000),
            rest=rest,
            ebbs=ebbs,
            stop=stop,
        )
        for number, (kinds, rest, ebbs) in enumerate(_staff(assignment, engine.dialect.name))
    ]
    threads = [Thread(target=writer.run, daemon=True) for writer in writers]
    try:
        for thread in threads:
            thread.start()
        line.recv()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        engine.dispose()
    report = Report()
    for writer in writers:
        failures = [writer.failure] if writer.failure else []
        report.add(Report(writer.transactions, writer.kinds, failures))
    return report


def _staff(assignment: Assignment, dialect: str) -> Iterator[tuple[Iterable[Kind], float, bool]]:
    """Yield what each writer writes, how long it rests, and whether it goes with the tide."""
    mix = assignment.mix.share(assignment.index, assignment.crews)
    for kinds, staff in ((HURTING[dialect], mix.hurting), (FAST, mix.fast), (BULK, mix.bulk)):
        for number in range(staff):
            yield kinds, mix.rest, number > 0
