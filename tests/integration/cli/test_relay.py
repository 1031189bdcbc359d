"""`zeroeventhub relay`."""

import json

import pytest
from harness.command_line import invoke
from harness.kafka import broker, headers
from harness.receiver import SECRET, Receiver
from harness.web import serving
from starlette.responses import Response

IDS = [str(number) for number in range(1, 101)]


@pytest.fixture
def store(tmp_path):
    """The URL of a database for cursors."""
    return f"sqlite:///{tmp_path / 'relay.db'}"


@pytest.fixture
def secret(tmp_path):
    """A file with the receiver's secret."""
    file = tmp_path / "secret"
    file.write_text(f"# of the hook\n{SECRET}\n")
    return file


@pytest.fixture
def receiver():
    """A receiver of webhooks, with its URL as `hook`."""
    receiver = Receiver()
    with serving(receiver.application) as url:
        receiver.hook = f"{url}/hook"
        yield receiver


def relay(feed, target, store, *options):
    """Run the command, with a result in JSON."""
    return invoke(
        *("relay", feed, "--to", target, "--store", store, "--consumer", "hook", "--json"), *options
    )


def test_secret_may_be_in_the_environment(feed, receiver, store, monkeypatch):
    """The secret comes from a variable, where no file is named; without either, relay refuses."""
    refused = relay(feed, receiver.hook, store)
    assert (refused.exit_code, "ZEROEVENTHUB_WEBHOOK_SECRET" in refused.stderr) == (2, True)
    monkeypatch.setenv("ZEROEVENTHUB_WEBHOOK_SECRET", SECRET)
    assert relay(feed, receiver.hook, store, "--event-type", "paid").exit_code == 0
    assert len(receiver.ids) == 10


@pytest.mark.slow
def test_refused_event_halts_or_is_set_aside(feed, store, secret):
    """Relay names the partition that halts and the status; with --set-aside it goes on."""
    receiver = Receiver(lambda one, _: Response(status_code=422) if one == "8" else None)
    options = ("--secret-file", secret, "--tries", 1)
    with serving(receiver.application) as url:
        halted = relay(feed, f"{url}/hook", store, *options)
        assert (halted.exit_code, halted.stdout) == (1, "")
        assert "Partition 1 stands still" in halted.stderr
        assert "status 422" in halted.stderr
        done = relay(feed, f"{url}/hook", store, *options, "--set-aside", "--hold-back")
    assert done.exit_code == 0
    # Orders 8, 22, 36, … are of one customer, in one partition.
    assert json.loads(done.stdout)["set_aside"] == 7
    assert len({*receiver.ids}) == 93


@pytest.mark.slow
def test_receiver_that_is_down_fails_the_command(feed, store, secret):
    """Without --follow, a target that does not answer ends the command with code 1."""
    failed = relay(feed, "http://127.0.0.1:1/hook", store, "--secret-file", secret)
    assert failed.exit_code == 1
    assert "The webhook did not answer ([Errno" in failed.stderr


def test_kafka_gets_every_event(feed, store, tmp_path):
    """Relay writes every event to a topic, with the settings of a file."""
    settings = tmp_path / "settings"
    settings.write_text("# of the broker\nclient.id = relay\n")
    with broker(tmp_path / "broker.log") as running:
        topic = running.create("orders")
        keeping = ("--kafka-settings", settings, "--keep-partitions", "--key", "id")
        shown = relay(feed, topic, store, *keeping)
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert json.loads(shown.stdout)["delivered"] == 100
        messages = running.read("orders")
    assert [headers(one)["ce_id"] for one in messages] == IDS[::2] + IDS[1::2]
    assert [one.key().decode() for one in messages] == IDS[::2] + IDS[1::2]


def test_cloud_event_without_the_named_member_has_its_own(feed, receiver, store, secret, tmp_path):
    """A CloudEvent that lacks the member of --key or --id is delivered with its own key and id."""
    named = ("--key", "nothing", "--id", "nothing")
    assert relay(feed, receiver.hook, store, *named, "--secret-file", secret).exit_code == 0
    assert sorted(receiver.ids, key=int) == IDS
    with broker(tmp_path / "broker.log") as running:
        topic = running.create("orders")
        other = f"sqlite:///{tmp_path / 'other.db'}"
        assert relay(feed, topic, other, *named).exit_code == 0
        messages = running.read("orders")
    events = [json.loads(one.value()) for one in messages]
    assert [one.key().decode() for one in messages] == [one["partitionkey"] for one in events]
    assert len(events) == 100


@pytest.fixture
def expect_misuse(feed, store, secret, tmp_path):
    """A function that runs the command, which must refuse and not repeat what a file holds."""
    wrong = tmp_path / "wrong"
    wrong.write_text("canary")
    latin = tmp_path / "latin"
    latin.write_text("canary\u00fc", "latin-1")
    places = {"{secret}": secret, "{wrong}": wrong, "{latin}": latin}

    def expect_misuse(target, options, words):
        refused = relay(feed, target, store, *(places.get(one, one) for one in options))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert words in refused.stderr
        assert "canary" not in refused.stderr

    return expect_misuse


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("kafka://127.0.0.1:1/orders", ["--lanes", 3], "for webhooks"),
        ("kafka://127.0.0.1:1", [], "kafka://host:port/topic"),
        ("https://billing.example", ["--keep-partitions"], "for Kafka"),
        ("https://billing.example", ["--hold-back"], "--set-aside"),
        ("http://billing.example", ["--secret-file", "{secret}"], "https"),
        ("https://billing.example", ["--secret-file", "{wrong}"], "whsec_"),
        ("kafka://127.0.0.1:1/orders", ["--kafka-settings", "{wrong}"], "name=value"),
        ("kafka://127.0.0.1:1/orders", ["--kafka-settings", "{latin}"], "a file that one names"),
    ],
)
def test_options_that_cannot_work_are_refused(expect_misuse, target, options, words):
    """An option of the other target, or one that cannot work, ends the command with code 2."""
    expect_misuse(target, options, words)
