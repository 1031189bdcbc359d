"""Break an answer at every byte, and judge what was made of it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import httpx

from harness.faults.account import Account, until_done
from harness.faults.answer import Answer, Framing
from harness.faults.findings import Findings, naming
from harness.faults.history import Body, History
from harness.faults.origin import Origin, serving_histories
from harness.faults.plan import Fault, Plan
from zeroeventhub import FIRST, AsyncClient, Client, Page
from zeroeventhub.errors import CutPage, ProtocolError, Unreachable, ZeroEventHubError

__all__ = ["HISTORY", "Case", "consume_all", "fetch_all", "fetch_all_async"]

HISTORY = History.of(["", "Zoë 😀", "a", '}\n{"cursor":"at-1"}\n', "b"], [1, 3, 5])
"""Three checkpoints, characters of several bytes, and a text that looks like a line."""

PATIENCE = 10
"""Seconds that the client waits for bytes; here they come or do not."""

CHANGING = {Fault.CORRUPT, Fault.FLIPPED}


@dataclass
class Case:
    """Judge what a client made of answers that were broken in one way.

    Attributes:
        framing: how an answer's end was said.
        packed: whether it was compressed.
        findings: what answers led to.
    """

    framing: Framing
    packed: bool
    findings: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        """Write the answer."""
        self.body: Body = HISTORY.body(FIRST, len(HISTORY.events))
        self.answer = Answer.of(self.body.text, self.framing, packed=self.packed)

    def plans(self, *, every: int = 1) -> Iterator[Plan]:
        """Yield a plan for each byte and each way to break there.

        Args:
            every: of how many of them one is taken; ways and bytes are mixed if it is prime.
        """
        wire = range(len(self.answer.wire) + 1)
        places = {
            Fault.CUT: wire,
            Fault.RESET: wire,
            Fault.CORRUPT: wire,
            Fault.TRUNCATED: range(len(self.body.text) + 1),
            Fault.FLIPPED: self.answer.body_places if self.packed else (),
        }
        plans = (Plan(fault, at) for fault, each in places.items() for at in each)
        yield from islice(plans, 0, None, every)

    def judge(self, plan: Plan, outcome: Page | ZeroEventHubError) -> None:
        """Complain unless a page ends at a checkpoint that has come, and is the truth up to it."""
        if isinstance(outcome, Page):
            number = int(outcome.cursor.removeprefix("at-"))
            events = tuple(event.raw for event in outcome.events)
            right = number in HISTORY.checkpoints and events == HISTORY.events[:number]
            right = right and outcome.caught_up is (number == len(HISTORY.events))
        else:
            number = None
            right = isinstance(outcome, CutPage | Unreachable) or (
                plan.fault in CHANGING and isinstance(outcome, ProtocolError)
            )
        # What a byte that is not the sent one leads to is right if it is the truth or an error.
        right = right and (plan.fault in CHANGING or number in self._expected(plan))
        if not right:
            self.findings.complaints.append(f"{self.name(plan)}: {outcome!r}")
        self.findings.counts.update(["trials", type(outcome).__name__])

    def name(self, plan: Plan) -> str:
        """Say what does it again."""
        return f"every_cut, {self.framing}, packed={self.packed}, {plan.fault} at {plan.at}"

    def _expected(self, plan: Plan) -> set[int | None]:
        """Tell up to which event a page may go."""
        if plan.fault is Fault.TRUNCATED:
            return {self.body.settled(self.body.text[: plan.at], ended=True)}
        received = self.answer.received(plan.at)
        # Whether a line without its break is one depends on how the connection ended.
        return {self.body.settled(received, ended=ended) for ended in (False, True)}


def fetch_all(case: Case, *, every: int = 1) -> None:
    """Fetch the answer with the sync client, broken in every way; see `Case.plans`."""
    origin = Origin([HISTORY], case.framing)
    with serving_histories(origin) as url, httpx.Client(timeout=PATIENCE) as session:
        client = Client(url, session, compressed=case.packed)
        client.discover()
        for plan in case.plans(every=every):
            origin.follow({0: [plan]})
            try:
                outcome = client.fetch(0, FIRST)
            except ZeroEventHubError as error:
                outcome = error
            case.judge(plan, outcome)


async def fetch_all_async(case: Case, *, every: int = 1) -> None:
    """Fetch the answer with the async client, broken in every way; see `Case.plans`."""
    origin = Origin([HISTORY], case.framing)
    with serving_histories(origin) as url:
        async with httpx.AsyncClient(timeout=PATIENCE) as session:
            client = AsyncClient(url, session, compressed=case.packed)
            await client.discover()
            for plan in case.plans(every=every):
                origin.follow({0: [plan]})
                try:
                    outcome = await client.fetch(0, FIRST)
                except ZeroEventHubError as error:
                    outcome = error
                case.judge(plan, outcome)


def consume_all(case: Case, account: Account, *, every: int = 1) -> None:
    """Read the feed with whole consumers, whose first answer is broken in every way."""
    origin = Origin([HISTORY], case.framing)
    with serving_histories(origin) as url, httpx.Client(timeout=PATIENCE) as session:
        client = Client(url, session, compressed=case.packed)
        for plan in case.plans(every=every):
            name = case.name(plan)
            origin.follow({0: [plan]})
            with naming(name):
                met = until_done(partial(account.read_in_turn, client, name))
            case.findings.compare(name, {0: HISTORY.numbers}, account.seen(name))
            case.findings.counts += met + Counter(trials=1)
