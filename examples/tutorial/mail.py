"""An e-mail for each large order: it cannot be undone, so the number of tries is limited."""

import os
import sys
from pathlib import Path

from reading import client, opened
from sqlalchemy import text

from zeroeventhub import Consumer, Event

MOST = 2
"""How often an e-mail is tried. With 1 some may be missing, and none is sent twice."""

LARGE = 9
MAILBOX = Path("mailbox.txt")

engine, store = opened("mail.db")
with engine.begin() as connection:
    table = """CREATE TABLE IF NOT EXISTS mails
        (event TEXT PRIMARY KEY, tries INTEGER NOT NULL, sent BOOLEAN NOT NULL)"""
    connection.execute(text(table))


def send(event: Event) -> None:
    """Send an e-mail; the server's answer is sometimes lost, and with --crash this process dies."""
    with MAILBOX.open("a") as mailbox:
        mailbox.write(f"{event.data['id']}\n")
    number = int(event.data["id"].partition("-")[2])
    if number % 4 == 0:
        raise TimeoutError("The mail server accepted the e-mail, and its answer was lost.")
    if "--crash" in sys.argv and number > 100:  # noqa: PLR2004 - somewhere in the middle
        os._exit(1)


def may_try(event: Event) -> bool:
    """Count a try, and commit that before the e-mail is sent; return whether a try was left."""
    statement = """INSERT INTO mails VALUES (:event, 1, FALSE)
        ON CONFLICT (event) DO UPDATE SET tries = tries + 1 WHERE tries < :most AND NOT sent
        RETURNING tries"""
    with engine.begin() as connection:
        found = connection.execute(text(statement), {"event": event.data["id"], "most": MOST})
        return found.first() is not None


def mail(event: Event) -> None:
    """Try until the e-mail is sent or no try is left; an operator then finds it in the table."""
    while may_try(event):
        try:
            send(event)
        except TimeoutError:
            continue
        with engine.begin() as connection:
            done = "UPDATE mails SET sent = TRUE WHERE event = :event"
            connection.execute(text(done), {"event": event.data["id"]})


if __name__ == "__main__":
    # One process, page by page, so that one place does what cannot be undone.
    for page in Consumer(client(), store, "mail", follow=False, limit=20):
        for event in page.events:
            if event.data["data"]["amount"] >= LARGE:
                mail(event)
        with engine.begin() as connection:
            page.commit(connection)
