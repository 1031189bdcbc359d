"""Checks of the token that stands for the layout of partitions."""

from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import READING, TOKEN
from zeroeventhub.conformance.subject import CONFLICT, Subject
from zeroeventhub.protocol import FIRST

_TRIES = 3


@check("token-accepted", READING, "The token that discovery gives is the one that events take.")
def _accepted(subject: Subject) -> None:
    partition = subject.partitions()[0]
    for _ in range(_TRIES):
        subject.discovery(again=True)
        answer = subject.send(subject.parameters(partition, FIRST))
        if answer.status != CONFLICT:
            break
    else:
        fail("The newest token was refused again and again.", answer)
    if not answer.ok:
        fail(f"A good request was answered with status {answer.status}.", answer)


@check("token-unknown", READING, "A token that is not the feed's is answered with 409.")
def _unknown(subject: Subject) -> None:
    partition = subject.partitions()[0]
    for token in (f"{subject.token}-conformance", "conformance"):
        parameters = dict(subject.parameters(partition, FIRST)) | {"token": token}
        answer = subject.send(list(parameters.items()))
        if answer.status != CONFLICT:
            fail(f"An unknown token was answered with status {answer.status}.", answer)


@check("token-partitions", TOKEN, "All partitions take the same token.")
def _everywhere(subject: Subject) -> None:
    for partition in subject.partitions()[:50]:
        answer = subject.ask(partition, FIRST, [("pagesizehint", "1")])
        if answer.status == CONFLICT:
            fail(f"Partition {partition} refuses the token of discovery.", answer)


@check("token-missing", READING, "A request without a token is answered with 400.")
def _missing(subject: Subject) -> None:
    answer = subject.send(subject.parameters(subject.partitions()[0], FIRST)[1:])
    if answer.status != 400:  # noqa: PLR2004 - the status that is asked for
        fail(f"It was answered with status {answer.status}.", answer)


@check("token-rotation", TOKEN, "A token is refused as soon as discovery gives another.")
def _rotation(subject: Subject) -> None:
    del subject
    skip("The layout would have to change, and nothing is changed here.")
