"""An e-mail for large orders: nothing can take it back, so it goes out at most so many times."""

import os
import sys
from pathlib import Path

from reading import client, opened
from sqlalchemy import text

from zeroeventhub import Consumer, Event

MOST = 2
"""How often an e-mail is tried. With 1 some may be missing, and none is there twice."""

LARGE = 9
MAILBOX = Path("mailbox.txt")

engine, store = opened("mail.db")
with engine.begin() as connection:
    table = """CREATE TABLE IF NOT EXISTS mails
        (event TEXT PRIMARY KEY, tries INTEGER NOT NULL, sent BOOLEAN NOT NULL)"""
    connection.execute(text(table))


def send(event: Event) -> None:
    """Hand an e-mail to a server whose answer is lost now and then, or that takes us with it."""
    with MAILBOX.open("a") as mailbox:
        mailbox.write(f"{event.data['id']}\n")
    number = int(event.data["id"].partition("-")[2])
    if number % 4 == 0:
        raise TimeoutError("The mail server has taken it, and its answer was lost.")
    if "--crash" in sys.argv and number > 100:  # noqa: PLR2004 - somewhere in the middle
        os._exit(1)


def may_try(event: Event) -> bool:
    """Count a try, and commit that before anything is sent; tell whether there is one left."""
    statement = """INSERT INTO mails VALUES (:event, 1, FALSE)
        ON CONFLICT (event) DO UPDATE SET tries = tries + 1 WHERE tries < :most AND NOT sent
        RETURNING tries"""
    with engine.begin() as connection:
        found = connection.execute(text(statement), {"event": event.data["id"], "most": MOST})
        return found.first() is not None


def mail(event: Event) -> None:
    """Try until it was sent or no try is left; what is left then is for a person to look at."""
    while may_try(event):
        try:
            send(event)
        except TimeoutError:
            continue
        with engine.begin() as connection:
            done = "UPDATE mails SET sent = TRUE WHERE event = :event"
            connection.execute(text(done), {"event": event.data["id"]})


if __name__ == "__main__":
    # One process, page by page: what cannot be undone is best done in one place.
    for page in Consumer(client(), store, "mail", follow=False, limit=20):
        for event in page.events:
            if event.data["data"]["amount"] >= LARGE:
                mail(event)
        with engine.begin() as connection:
            page.commit(connection)
