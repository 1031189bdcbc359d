"""Deliver events as requests to a webhook, signed by Standard Webhooks."""

import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

import httpx

from zeroeventhub.client.connection_pool import open_httpx
from zeroeventhub.client.redaction import safe_text
from zeroeventhub.consumer.apply import divide
from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.protocol import Event
from zeroeventhub.relay.target import Choose, EventRefused, Target, TargetUnavailable
from zeroeventhub.wire.cloud_event import attributes, event_id, event_key
from zeroeventhub.wire.problem import seconds_in

require("standardwebhooks", extra="webhooks", user="A relay to a webhook")
from standardwebhooks.webhooks import Webhook  # noqa: E402 - named if missing

TIMEOUT = httpx.Timeout(20.0, connect=10.0)
"""Seconds for one operation on a connection to a receiver."""

_DRAINING = 5.0
"""Seconds to read a response's body for, so that its connection can be used again."""

SHORTEST_SECRET, LONGEST_SECRET = 24, 64
"""Bytes of a secret (Standard Webhooks, Signature scheme)."""

_LATER = {401, 403, 404, 405, 407, 408, 410, 425, 429}
"""Statuses that are not the event's fault: the receiver is misconfigured, or has no room."""


class WebhookTarget(Target):
    """Deliver events as POST requests, signed by Standard Webhooks.

    The body is the event's JSON, byte for byte; `webhook-id` is the event's id.

    Example:
        with WebhookTarget("https://billing.example/hook", secrets=[secret]) as target:
            Consumer(client, store, "hook").run(target.apply)

    Args:
        url: where to send: an https URL, or an http one on this machine.
        secrets: what to sign with, each as `whsec_` and Base64 of 24 to 64 bytes. During a rotation
            there are two, and a signature by each.
        key: returns the key of an event; events of one key are sent one after the other.
        identity: returns the id of an event; by default a CloudEvent's id.
        lanes: how many requests are sent at a time; 1 or more.

    Raises:
        ConfigurationError: the URL, a secret or the number of lanes cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[str],
        key: Choose = event_key,
        identity: Choose = event_id,
        lanes: int = 8,
    ) -> None:
        super().__init__()
        _check_url(url)
        if lanes < 1:
            raise ConfigurationError("A webhook gets at least one request at a time.")
        self._url = url
        self._signers = [_signer(secret) for secret in secrets]
        if not self._signers:
            raise ConfigurationError("Requests to a webhook are signed: give a secret.")
        self._key = key
        self._identity = identity
        self._lanes = lanes
        self._http = open_httpx(
            httpx.Client,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=lanes),
            mounts={"http://": None},  # to this machine, and so by no proxy of the environment
        )
        self._threads = ThreadPoolExecutor(lanes, "zeroeventhub-webhook")

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._threads.shutdown()
        self._http.close()

    def deliver(
        self, partition: int, events: Sequence[Event], delivered: Callable[[Event], object]
    ) -> None:
        """Deliver events; see `Target.deliver`."""
        del partition
        parts = divide(events, self._key, lanes=self._lanes, done={})
        is_down = threading.Event()
        send = partial(self._send_all, delivered=delivered, is_down=is_down)
        errors = [error for error in self._threads.map(send, parts.values()) if error is not None]
        # A refusal comes last: it counts as a try of its event only if all others were sent.
        errors.sort(key=lambda error: isinstance(error, EventRefused))
        if errors:
            raise errors[0]

    def _send_all(
        self,
        events: Sequence[Event],
        delivered: Callable[[Event], object],
        is_down: threading.Event,
    ) -> Exception | None:
        """Send events one after the other, until one fails; return its error."""
        try:
            for event in events:
                if is_down.is_set():
                    break
                self._send(event)
                delivered(event)
        except TargetUnavailable as error:
            is_down.set()
            return error
        except Exception as error:  # noqa: BLE001 - raised when the other lanes have ended
            return error
        return None

    def _send(self, event: Event) -> None:
        identity = self._identity(event)
        if not identity:  # receivers would take all events with an empty one for the same
            raise EventRefused(
                "The event has no id, by which the receiver could tell that it comes again: say "
                "which of its members is unique (identity, --id)."
            )
        # As CloudEvents' HTTP binding writes attributes in headers.
        identity = quote(identity, safe="!#$&'()*+,/:;=?@[]^`{|}\\<>")
        now = datetime.now(UTC)
        signatures = [one.sign(identity, now, event.raw.decode()) for one in self._signers]
        kind = "cloudevents+json" if attributes(event) else "json"
        headers = {
            "content-type": f"application/{kind}; charset=utf-8",
            "webhook-id": identity,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        try:
            with self._http.stream(
                "POST", self._url, content=event.raw, headers=headers
            ) as response:
                _check(response, identity)
                with suppress(httpx.HTTPError):  # the event has been taken
                    _drain(response)
        except httpx.HTTPError as error:
            raise TargetUnavailable(f"The webhook did not answer ({safe_text(error)}).") from error


def _check(response: httpx.Response, identity: str) -> None:
    """Raise an error unless the receiver has taken the event."""
    status = response.status_code
    if response.is_success:
        return
    if response.is_client_error and status not in _LATER:
        raise EventRefused(f"The webhook refused event {identity} with status {status}.")
    asked = seconds_in(response.headers.get("retry-after", ""))
    raise TargetUnavailable(
        f"The webhook answered to event {identity} with status {status}.", retry_after=asked
    )


def _drain(response: httpx.Response) -> None:
    """Read a small body; a connection with a large one is closed."""
    deadline = time.monotonic() + _DRAINING
    for _, _ in zip(range(16), response.iter_raw(), strict=False):
        if time.monotonic() > deadline:
            return


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port, httpx.URL(url).raw_host.decode().encode("idna")
    except (ValueError, httpx.InvalidURL):
        raise ConfigurationError("The URL of the webhook is not of HTTP's form.") from None
    is_here = parts.hostname == "localhost"
    with suppress(ValueError):
        is_here = is_here or ip_address(parts.hostname or "").is_loopback
    if not parts.hostname or parts.scheme not in ({"http", "https"} if is_here else {"https"}):
        raise ConfigurationError(
            "A webhook has an https URL; http is for receivers on this machine, such as "
            "http://127.0.0.1:8000/hook."
        )


def _signer(secret: str) -> Webhook:
    text = secret.removeprefix("whsec_")
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if not SHORTEST_SECRET <= len(key) <= LONGEST_SECRET:
        raise ConfigurationError(
            f"A webhook's secret is written as whsec_ and Base64 of {SHORTEST_SECRET} to "
            f"{LONGEST_SECRET} bytes."
        )
    return Webhook(key)
