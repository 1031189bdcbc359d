"""Deliveries to a receiver of webhooks over real HTTP."""

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import trustme
from harness.receiver import SECRET, Receiver
from harness.stores import call
from harness.web import answering, serving, serving_tls
from starlette.responses import Response

from zeroeventhub import Event, Failures
from zeroeventhub.errors import ConfigurationError, Halted
from zeroeventhub.relay.target import EventRefused, TargetUnavailable
from zeroeventhub.relay.webhooks import WebhookTarget

IDS = {str(number) for number in range(1, 101)}


def target(url, **options):
    """Make a target that signs with the receiver's secret."""
    return WebhookTarget(url, **{"secrets": [SECRET], **options})


def deliver(url, *events, **options):
    """Deliver events by a target of their own."""
    with target(url, **options) as one:
        one.deliver(0, [*map(Event.of, events)], lambda _: None)


def test_event_is_a_signed_request(relay, receiving):
    """A request has the event as its body, its id, and a signature that a receiver can check."""
    receiver = Receiver()
    with target(receiving(receiver)) as one:
        relay(one)
        relay(one)
    assert sorted(receiver.ids) == sorted(IDS)  # each once
    assert receiver.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    for identity, body in receiver.taken:
        assert json.loads(body)["id"] == identity


def test_receiver_gets_no_cookies_back(receiving):
    """Cookies of a receiver are not kept: with new ones in each answer they filled the memory."""
    cookie = {"Set-Cookie": "c=x; Path=/"}
    receiver = Receiver(lambda *_: Response(status_code=204, headers=cookie))
    deliver(receiving(receiver), *({"specversion": "1.0", "id": one} for one in "123"), lanes=1)
    assert len(receiver.asked) == 3
    assert "cookie" not in receiver.headers


def test_lanes_bound_the_requests_and_keep_keys_in_order(relay, receiving):
    """No more requests than lanes are in work, of one key one at a time, in the feed's order."""
    receiver = Receiver(seconds=0.01)
    with target(receiving(receiver), lanes=3) as one:
        relay(one)
    assert receiver.most == 3
    events = [json.loads(body) for _, body in receiver.taken]
    for key in {event["partitionkey"] for event in events}:
        for part in range(2):
            of_key = [event["data"]["n"] for event in events if event["partitionkey"] == key]
            of_part = [n for n in of_key if n % 2 == part]
            assert of_part == sorted(of_part)


@pytest.mark.slow
def test_what_passes_by_itself_is_tried_again(relay, receiving):
    """After 503, 429 and lost connections nothing is missing, and nothing taken comes again."""

    def answer(identity, count):
        failing = int(identity) % 10 == 0 and count <= 2
        return Response(status_code=503 if count == 1 else 429) if failing else None

    receiver = Receiver(answer)
    with target(receiving(receiver)) as one:
        relay(one, attempts=None)
    assert sorted(receiver.ids) == sorted(IDS)
    assert receiver.asked["10"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(relay, receiving, form):
    """A receiver that names a time is left alone until then."""
    times = []

    def answer(identity, count):
        if identity != "1" or times:
            times.append(time.monotonic())
            return None
        times.append(time.monotonic())
        later = format_datetime(datetime.now(UTC) + timedelta(seconds=1.9), usegmt=True)
        return Response(
            status_code=429, headers={"retry-after": "1" if form == "seconds" else later}
        )

    receiver = Receiver(answer)
    with target(receiving(receiver), lanes=1) as one:
        relay(one, partitions=[0])
    assert len(receiver.ids) == 50
    assert times[1] - times[0] > 0.8


@pytest.mark.slow
def test_receiver_that_is_down_ends_the_run(relay, receiving):
    """After the attempts that a consumer has, its run ends; another one delivers all."""
    with target("http://127.0.0.1:1/hook") as one, pytest.raises(TargetUnavailable) as raised:
        relay(one, attempts=2)
    assert "refused" in str(raised.value)
    receiver = Receiver()
    with target(receiving(receiver)) as one:
        relay(one)
    assert sorted(receiver.ids) == sorted(IDS)


def test_certificate_that_is_not_trusted_is_named():
    """A receiver whose certificate cannot be verified has answered, so the error says why not."""
    with (
        serving_tls(Receiver().application, trustme.CA()) as url,
        pytest.raises(TargetUnavailable, match="certificate verify failed"),
    ):
        deliver(url, {"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed"})


@pytest.mark.parametrize("hold_back", [False, True])
@pytest.mark.slow
def test_refused_event_is_a_dead_letter(relay, receiving, store, hold_back):
    """A 400 is tried as often as said and set aside, if so asked with what follows of its key.

    What the receiver took before does not come again.
    """
    refuses = True

    def answer(identity, count):
        return Response(status_code=400) if identity == "8" and refuses else None  # of customer c0

    receiver = Receiver(answer)
    with target(receiving(receiver)) as one:
        relay(one, failures=Failures(2, "set-aside", hold_back=hold_back))
        held = {str(n + 1) for n in range(7, 100, 14)} if hold_back else {"8"}
        assert sorted(receiver.ids) == sorted(IDS - held)
        assert call(store, store.dead_letters.count, name="relay") == {1: len(held)}
        call(store, store.dead_letters.retry, name="relay")
        refuses = False
        relay(one)
    assert sorted(receiver.ids) == sorted(IDS)


@pytest.mark.slow
def test_refused_event_halts(relay, receiving):
    """By default a 400 halts the partition, after everything else of its page was delivered."""
    receiver = Receiver(lambda identity, _: Response(status_code=422) if identity == "8" else None)
    with target(receiving(receiver)) as one, pytest.raises(Halted) as halted:
        relay(one, failures=Failures(2))
    assert str(halted.value.__cause__) == "The webhook refused event 8 with status 422."
    assert len(receiver.ids) == len({*receiver.ids})


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, EventRefused), (409, EventRefused), (413, EventRefused)]
    + [(status, TargetUnavailable) for status in (302, 401, 403, 404, 408, 410, 429, 500, 503)],
)
def test_status_says_whose_fault_it_is(receiving, status, error):
    """What the whole receiver refuses is waited for; what it refuses of an event is the event's."""
    receiver = Receiver(lambda *_: Response(status_code=status, headers={"location": "/other"}))
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed"}
    with pytest.raises(error, match=str(status)):
        deliver(receiving(receiver), event)


def test_rotated_secret_signs_as_well(receiving):
    """With two secrets, receivers of either accept the signature."""
    other = "whsec_" + "b3RoZXI=" * 6
    for secrets in ([SECRET, "whsec_" + "A" * 40], ["whsec_" + "A" * 40, SECRET]):
        receiver = Receiver()
        event = {"specversion": "1.0", "id": "é 1%", "source": "/shop", "type": "placed"}
        deliver(receiving(receiver), event, secrets=secrets)
        assert receiver.ids == ["%C3%A9%201%25"]
    with pytest.raises(ConfigurationError, match="whsec_"):
        deliver("http://127.0.0.1/hook", secrets=[other])


def test_event_without_an_id_is_refused(receiving):
    """A receiver cannot tell repeats of events without an id, or an empty one; a function helps."""
    receiver = Receiver()
    url = receiving(receiver)
    empty = {"specversion": "1.0", "id": "", "source": "/shop", "type": "placed"}
    for event in ({"n": 7}, empty):
        with pytest.raises(EventRefused, match="no id"):
            deliver(url, event)
    deliver(url, {"n": 7}, identity=lambda event: str(event.data["n"]))
    assert receiver.taken == [("7", b'{"n":7}')]
    assert receiver.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_no_proxy_gets_what_is_for_this_machine(receiving, monkeypatch, name):
    """A request by http does not leave the machine, also where the environment names a proxy."""
    receiver, proxy = Receiver(), Receiver()
    url = receiving(receiver)
    with serving(proxy.application) as address:
        monkeypatch.setenv(name, address)
        deliver(url, {"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed"})
    assert (receiver.ids, proxy.ids) == (["1"], [])


def test_endless_answer_counts_as_taken():
    """The body of a success is read only in part: it may have any size."""
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "placed"}
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n"
    with answering(lambda _: head + bytes(10_000_000)) as url:
        deliver(f"{url}/hook", event, event)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("http://billing.example/hook", {}, "https"),
        ("http://127.0.0.1.example/hook", {}, "https"),
        ("ftp://127.0.0.1/hook", {}, "https"),
        ("billing.example", {}, "https"),
        ("https:///hook", {}, "https"),
        ("https://billing..example/hook", {}, "HTTP's form"),
        (f"https://{'a' * 64}.example/hook", {}, "HTTP's form"),
        ("https://billing.example:port/hook", {}, "HTTP's form"),
        ("https://billing.example:65536/hook", {}, "HTTP's form"),
        ("https://[::1/hook", {}, "HTTP's form"),
        ("https://billing.example/hook\n", {}, "HTTP's form"),
        ("https://billing.example/hook", {"secrets": []}, "signed"),
        ("https://billing.example/hook", {"secrets": ["whsec_canary!"]}, "24 to 64 bytes"),
        ("https://billing.example/hook", {"secrets": ["canary"]}, "24 to 64 bytes"),
        ("https://billing.example/hook", {"lanes": 0}, "one request"),
    ],
)
def test_target_that_cannot_work_is_refused(url, options, words):
    """A URL, a secret or a number of lanes that cannot work is refused at once."""
    with pytest.raises(ConfigurationError) as refused:
        target(url, **options)
    assert words in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://billing.example/hook", "http://[::1]:8000/hook"])
def test_https_and_this_machine_are_targets(url):
    """Webhooks are reached by https, and on this machine by http."""
    with target(url):
        pass
