"""`zeroeventhub append`."""

import json

import pytest
from harness.appended import ids
from harness.command_line import PATIENCE, invoke, started
from harness.readers import client_of
from harness.statements import execute
from harness.waiting import until
from harness.written import writable

from zeroeventhub import NewEvent


def lines(count, *, first=0):
    """Events numbered from first on, a line each."""
    return "".join(
        json.dumps({"id": f"e{n}", "type": "placed", "data": {"n": n}, "key": f"c{n % 7}"}) + "\n"
        for n in range(first, first + count)
    )


def expected(count):
    """Their ids."""
    return [f"e{number}" for number in range(count)]


@pytest.fixture
def written(sqlite):
    """A log, its URL, and the requests to it."""
    with writable(sqlite) as found:
        yield found


@pytest.fixture
def file(tmp_path):
    """A file of 2,100 events."""
    file = tmp_path / "events.ndjson"
    file.write_text(lines(2_100))
    return file


def counts(result):
    """What a command has counted."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_lines_of_a_file_or_of_stdin_are_appended_once(written, sqlite, file):
    """The command appends each line, in order, also after a byte order mark, and nothing twice."""
    log, url, _ = written
    shown = invoke("append", url, answer=f"\ufeff{lines(1_100)}\n")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "Events appended: 1,100; skipped: 0\n" in shown.stderr
    assert counts(invoke("append", url, file, "--json")) == {"appended": 2_100, "skipped": 0}
    assert ids(sqlite, log) == expected(2_100)


def test_producer_skips_what_the_log_has(written, sqlite, file):
    """With --producer the command sends what its batches lack, also of a file that has grown."""
    log, url, requests = written
    command = ("append", url, file, "--producer", "import", "--json")
    assert counts(invoke(*command)) == {"appended": 2_100, "skipped": 0}
    before = requests.count
    with file.open("a") as more:
        more.write(lines(100, first=2_100))
    assert counts(invoke(*command)) == {"appended": 200, "skipped": 2_000}
    assert requests.count == before + 2
    assert ids(sqlite, log) == expected(2_200)


@pytest.mark.parametrize(
    "content", [lines(2_100, first=5_000), lines(999)], ids=["other", "shorter"]
)
def test_other_file_of_a_producer_is_refused(written, file, content):
    """A producer whose file has changed since it was appended is refused."""
    _, url, _ = written
    command = ("append", url, file, "--producer", "import")
    assert invoke(*command).exit_code == 0
    file.write_text(content)
    shown = invoke(*command)
    assert (shown.exit_code, "give each file a name of its own" in shown.stderr) == (2, True)


def test_producer_of_trimmed_events_appends_none_of_them_again(written, sqlite, file):
    """Where a producer's last batch was trimmed, the command says how to append further lines."""
    log, url, _ = written
    command = ("append", url, file, "--producer", "import")
    assert invoke(*command).exit_code == 0
    execute(sqlite, log.table.delete().where(log.table.c.position <= 2_000))
    shown = invoke(*command)
    assert (shown.exit_code, "append the lines after them" in shown.stderr) == (2, True)
    assert ids(sqlite, log) == expected(2_100)[2_000:]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ('{"id": "e3", "type": "other", "data": {}}', 1, "Line 41: There already is an event"),
        ('{"id": "x", "type": "placed"}', 2, "Line 41 is not an event"),
        ('{"id": "x", "type": "placed", "data": 5}', 2, "Line 41: The data is a bare"),
        ('{"id": "x", "type": "", "data": {}}', 2, "Line 41: The type of an event"),
        ("{", 2, "Line 41 is not an event"),
        ('{"id": "x", "type": "a", "data": "\udcfc"}', 2, "Line 41 is not an event: 'utf-8'"),
        ('{"id": "x", "type": "a", "data": "%s"}' % ("x" * 2**20), 2, "Line 41: the data"),
        ("x" * 2**21, 2, "Line 41 is longer"),
    ],
    ids=["id", "missing", "number", "name", "cut", "bytes", "large", "long"],
)
def test_command_ends_at_a_line_that_is_refused(written, sqlite, line, code, words):
    """A sentence names the line; those before it are appended, and none after it."""
    log, url, _ = written
    file = f"{lines(40)}{line}\n{lines(40, first=40)}".encode(errors="surrogateescape")
    shown = invoke("append", url, answer=file)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert f"Error: {words}" in shown.stderr
    assert ids(sqlite, log) == expected(40)


def test_batch_that_a_proxy_refuses_is_divided(written, sqlite, file):
    """If a proxy takes only small requests, the command sends small ones, and goes on."""
    log, url, requests = written
    requests.largest = 30_000
    assert counts(invoke("append", url, file, "--json")) == {"appended": 2_100, "skipped": 0}
    assert ids(sqlite, log) == expected(2_100)


def test_conflict_names_the_line(written):
    """A line that expects another version than its key has ends the command."""
    _, url, _ = written
    with client_of(url) as client:
        client.append([NewEvent("placed", {}, key="ada", expected_version=0)])
    line = '{"id": "x", "type": "paid", "data": {}, "key": "ada", "expectedVersion": 5}'
    shown = invoke("append", url, answer=f"{lines(3)}{line}\n")
    assert (shown.exit_code, "Line 4: " in shown.stderr) == (1, True)


@pytest.mark.slow
@pytest.mark.test_all
def test_killed_command_appends_each_line_once_in_the_end(written, sqlite, file):
    """Killed in the middle and run again, the command has appended each line once."""
    log, url, _ = written
    command = ("append", url, file, "--producer", "import")
    with started(*command) as process:
        until(lambda: ids(sqlite, log), "a batch is there", PATIENCE)
        process.kill()
        process.wait(PATIENCE)
    assert invoke(*command).exit_code == 0
    assert ids(sqlite, log) == expected(2_100)
