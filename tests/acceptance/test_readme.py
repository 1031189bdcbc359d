"""The README and the examples do what they say."""

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from harness.command_line import PATIENCE, address_of, run, started
from harness.waiting import until
from sqlalchemy import create_engine, inspect, text

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = ROOT / "examples"
TUTORIAL = EXAMPLES / "tutorial"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts a program in an empty folder; it is killed in the end."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield lambda *words: stack.enter_context(started(*words, program=[sys.executable]))


def serve(start, example):
    """Serve an example; return where it listens, in the place of the README's address."""
    options = ("--no-access-log", "--port", "0", "--app-dir", EXAMPLES)
    return address_of(start("-m", "uvicorn", *options, f"{example}:app"))


def write(engine, *orders):
    """Append orders as the README does, by their text."""
    with engine.begin() as connection:
        for order in orders:
            connection.execute(text("INSERT INTO orders (data) VALUES (:data)"), {"data": order})


@pytest.fixture
def address(start):
    """Where the README's publisher listens."""
    return serve(start, "publisher")


@pytest.fixture
def follow(start, address, tmp_path):
    """A function that starts an example of a client of the README's publisher."""

    def follow(name):
        program = tmp_path / Path(name).with_suffix(".py").name
        program.write_text((EXAMPLES / f"{name}.py").read_text().replace(ADDRESS, address))
        return start(program)

    return follow


@pytest.fixture
def shop(address, tmp_path):
    """The engine of the README's publisher, with the two orders that its curl shows."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    write(engine, '{"customer":"ada","amount":12}', '{"customer":"bob","amount":7.5}')
    yield engine
    engine.dispose()


@pytest.fixture
def billing(tmp_path):
    """The engine of the README's consumer."""
    engine = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
    yield engine
    engine.dispose()


def billed(billing):
    """Read the invoices of the README's consumer."""
    with billing.connect() as connection:
        if not inspect(connection).has_table("invoices"):
            return []
        query = text("SELECT customer, amount FROM invoices ORDER BY amount")
        return [tuple(row) for row in connection.execute(query)]


@pytest.mark.parametrize("name", ["publisher", "consumer", "spark/orders"])
def test_code_in_the_readme_is_the_example(name):
    """The README shows the example's file without its docstring, in about ten lines."""
    shown = re.search(rf"<!-- examples/{name}.py -->\n```python\n(.*?)```", README, re.DOTALL)[1]
    example = (EXAMPLES / f"{name}.py").read_text()
    assert example.partition('"""\n\n')[2] == shown
    assert len([line for line in shown.splitlines() if line and "import" not in line]) <= 10


def test_typed_code_in_the_readme_is_in_the_example():
    """What the README shows of the consumer that runs itself stands in the example's file."""
    shown = re.search(r"<!-- typed_consumer -->\n```python\n(.*?)```", README, re.DOTALL)[1]
    example = (EXAMPLES / "typed_consumer.py").read_text()
    lines = {line.strip() for line in example.splitlines()}
    assert [line for line in shown.splitlines() if line.strip() not in lines] == []


@pytest.mark.usefixtures("shop")
def test_curl_shows_what_the_readme_shows(address):
    """The README's curl line gives the README's output."""
    block = re.search(r"<!-- curl -->\n```console\n\$ (.*?)\n(.*?)```", README, re.DOTALL)
    command = shlex.split(block[1].replace(ADDRESS, address))
    shown = subprocess.run([*command, "--silent"], capture_output=True, text=True, check=True)
    assert shown.stdout == block[2]


@pytest.mark.parametrize(
    "example",
    ["consumer", "typed_consumer", pytest.param("async_consumer", marks=pytest.mark.test_all)],
)
def test_consumer_of_the_readme_bills_each_order_once(shop, follow, billing, example):
    """The consumers write an invoice for every order, once, though they are killed."""
    process = follow(example)
    until(lambda: len(billed(billing)) >= 2, "two orders are billed", PATIENCE)
    process.kill()
    process.wait()
    if example != "consumer":
        with billing.begin() as connection:  # as if its lease of 30 seconds had run out
            connection.execute(text("UPDATE zeroeventhub_leases SET expires_at = 1"))
            connection.execute(text("UPDATE zeroeventhub_members SET expires_at = 1"))
    process = follow(example)
    write(shop, '{"customer":"eve","amount":99}')
    until(lambda: ("eve", 99) in billed(billing), "the third order is billed", PATIENCE)
    assert billed(billing) == [("bob", 7.5), ("ada", 12), ("eve", 99)]
    if example != "consumer":
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0, process.stderr.read()


def test_feed_of_ones_own_making_publishes_a_file(start, tmp_path):
    """The example of a feed without a database publishes whole lines only."""
    (tmp_path / "journal.txt").write_text("one\ntwo\nthr")
    url = f"{serve(start, 'own_feed')}/journal/events"
    page = httpx.get(url, params={"token": "1", "partition": 0, "cursor": "_first"})
    assert page.text == '{"data":{"line":"one"}}\n{"data":{"line":"two"}}\n{"cursor":"8"}\n'
    last = httpx.get(url, params={"token": "1", "partition": 0, "cursor": "_last"})
    assert last.text == '{"cursor":"8"}\n'
    assert httpx.get(url, params={"token": "1", "partition": 0, "cursor": "x"}).status_code == 400


def test_every_command_is_in_the_readme():
    """Each command of the command line is named in the README."""
    from zeroeventhub.cli.commands import commands

    for name in commands.commands:
        assert f"`{name}`" in README or f"zeroeventhub {name}" in README


@pytest.mark.test_all
@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("through", ["a session", "Connect"])
def test_spark_of_the_readme_reads_every_order_once(follow, tmp_path, monkeypatch, through):
    """Spark's files hold every order of the shop, once, also if a server of Spark Connect reads."""
    from harness.spark import prepare

    prepare()
    if through == "Connect":
        monkeypatch.setenv("SPARK_REMOTE", "local[2]")
        monkeypatch.setenv("SPARK_TESTING", "1")  # lets the server choose its port
    process = follow("spark/orders")
    assert process.wait(timeout=280) == 0, process.stderr.read()
    import pyarrow.parquet

    found = pyarrow.parquet.ParquetDataset(list((tmp_path / "orders").glob("*.parquet"))).read()
    assert sorted(found["data"].to_pylist()) == [
        '{"customer":"ada","amount":12}',
        '{"customer":"bob","amount":7.5}',
    ]


@pytest.mark.test_all
def test_tutorial_ends_with_the_truth(tmp_path):
    """With fewer orders the tutorial prints what its README shows, and no step fails."""
    ended = run(TUTORIAL / "run.py", 40, program=[sys.executable], cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    page = (TUTORIAL / "README.md").read_text()
    shown = re.search(r"```console\n(.*?)```", page, re.DOTALL)[1]
    assert re.sub(r"\d+", "0", ended.stdout) == re.sub(r"\d+", "0", shown)
    assert list(tmp_path.iterdir()) == []


STEPS = range(1, 8)


def test_each_step_of_a_log_fails_where_a_feed_holds():
    """The steps, here run by one process, print what their page shows."""
    page = (ROOT / "docs" / "build_a_log.md").read_text()
    shown = [
        re.search(rf"<!-- step {number} -->\n```console\n(.*?)```", page, re.DOTALL)[1]
        for number in STEPS
    ]
    run_all = "import runpy, sys; [runpy.run_path(step, {}, '__main__') for step in sys.argv[1:]]"
    files = [f"step_{number}.py" for number in STEPS]
    program = [sys.executable, "-c", run_all]
    ended = run(*files, program=program, cwd=TUTORIAL / "build_a_log")
    assert ended.stdout + ended.stderr == "".join(shown)


@pytest.mark.parametrize("number", STEPS)
def test_code_of_a_log_is_the_step(number):
    """The page shows pieces of a step's file as they are."""
    page, step = (ROOT / "docs" / "build_a_log.md").read_text(), f"build_a_log/step_{number}.py"
    pieces = re.findall(rf"tutorial/{step} -->\n```python\n(.*?)```", page, re.DOTALL)
    assert pieces
    assert [piece for piece in pieces if piece not in (TUTORIAL / step).read_text()] == []
