"""Run the tutorial in an empty folder, kill processes, and compare the results with the truth."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine, text

HERE = Path(__file__).parent
ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
PATIENCE = 90.0
LARGE, MOST = 9, 2
"""The same values as in mail.py."""


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a program of the tutorial."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return subprocess.Popen([sys.executable, *arguments], env=environment)  # noqa: S603 - our own


def until(done: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"Waited in vain for {what}.")
        time.sleep(0.05)


def free_port() -> int:
    """Find a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether a process listens at a port."""
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def truth() -> dict[str, int]:
    """Add up what customers have to have spent."""
    spent: Counter[str] = Counter()
    for number in range(ORDERS):
        spent[f"customer-{number % 20}"] += 1 + number % 9
    return dict(spent)


def totals() -> dict[str, int]:
    """Read the totals that the consumer stored."""
    engine = create_engine("sqlite:///totals.db")
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT customer, spent FROM totals")).all()
    engine.dispose()
    return {row.customer: row.spent for row in rows}


def noted() -> list[str]:
    """Read the ids of all whole rows of analytics."""
    rows = b"".join(file.read_bytes() + b"\n" for file in Path("analytics").iterdir())
    lines = rows.split(b"\n")
    return [json.loads(line)["id"] for line in lines if line.endswith(b"}")]


def tell(sentence: str) -> None:
    """Print what happens."""
    print(sentence, flush=True)


def main() -> None:
    """Run all steps."""
    from shop import open_shop  # noqa: PLC0415 - it opens its database in the current folder

    open_shop()
    port = free_port()
    os.environ["SHOP"] = f"http://127.0.0.1:{port}/orders"
    options = f"--port {port} --log-level error --timeout-graceful-shutdown 1"
    running = [start("-m", "uvicorn", "shop:app", *options.split())]
    try:
        until(lambda: listens(port), "the shop")
        tell(f"The shop is open. Customers place {ORDERS} orders, and repeat every fifth request.")
        producer = start(str(HERE / "producer.py"), str(ORDERS))
        groups = {
            "totals": [start(str(HERE / "totals.py")) for _ in "12"],
            "search": [start(str(HERE / "search.py"), "--crash")],
        }
        running += [producer, *groups["totals"], *groups["search"]]
        until(lambda: Path("totals.db").exists() and bool(read(totals)), "the first totals")
        until(lambda: Path("analytics").exists() and bool(noted()), "the first documents")
        groups["totals"][0].kill()
        groups["search"][0].wait(PATIENCE)
        groups["search"].append(start(str(HERE / "search.py")))
        running.append(groups["search"][1])
        tell("One process of each group has died; another takes over its partitions.")
        if producer.wait(PATIENCE):
            sys.exit("The producer has failed.")
        until(lambda: read(totals) == truth(), "the totals")
        tell("The totals are the truth: each order was added once.")
        until(lambda: len(set(noted())) == ORDERS, "all rows of analytics")
        documents, rows = len([*Path("index").glob("*.json")]), len(noted())
        tell(f"The index has {documents} documents; analytics has {rows} rows of {ORDERS} ids.")
        if documents != ORDERS or rows <= ORDERS:
            sys.exit("The process that crashed should have left rows that were written again.")
        mail()
        for workers in groups.values():
            workers[1].terminate()
            workers[1].wait(PATIENCE)
        if start(str(HERE / "totals.py"), "--replay").wait(PATIENCE) or totals() != truth():
            sys.exit("The replay is not the truth.")
        tell("The totals were thrown away and read again from the first event: they are the same.")
    finally:
        for process in running:
            process.kill()
            process.wait()


def read(question: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Query a database that may not have its tables yet."""
    try:
        return question()
    except Exception:  # noqa: BLE001 - the caller tries again
        return {}


def mail() -> None:
    """Send e-mails, with a crash in the middle, and count them."""
    start(str(HERE / "mail.py"), "--crash").wait(PATIENCE)
    tell("The mailer has crashed after it sent an e-mail, before it could record that.")
    if start(str(HERE / "mail.py")).wait(PATIENCE):
        sys.exit("The mailer has failed.")
    sent = Counter(Path("mailbox.txt").read_text().split())
    large = {f"request-{number}" for number in range(ORDERS) if 1 + number % 9 >= LARGE}
    if set(sent) != large or max(sent.values()) > MOST:
        sys.exit(f"The e-mails are wrong: {sent}.")
    twice = sum(count == MOST for count in sent.values())
    tell(f"{len(sent)} e-mails went out, {twice} of them twice, and none three times.")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        os.chdir(folder)
        main()
        os.chdir(HERE)
    tell("Done.")
