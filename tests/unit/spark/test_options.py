"""Options of the Spark source: what each means, and that no error repeats a value."""

from datetime import UTC, datetime

import httpx
import pytest
import trustme

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.spark.options import EARLIEST, Credentials, Moments, Options, read_options
from zeroeventhub.spark.source import FeedSource

URL = "https://shop.example/orders"
CANARY = "kanarek"


def read(**given):
    """Read options of a feed."""
    return read_options({"path": URL} | given)


def test_url_is_enough():
    """Without options all of the feed is read; the case of option names does not matter."""
    assert read() == read_options({"url": URL}) == Options(url=URL)
    one = read(minPartitions="4", STARTINGOFFSETS="Earliest", failondataloss="FALSE")
    assert (one.min_partitions, one.starting, one.fail_on_data_loss) == (4, EARLIEST, False)
    moment = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
    assert read(endingTimestamp="253402300799999").ending == Moments(moment, {})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"url": "https://another.example"}, "once"),
        ({"path": "https://user:kanarek@shop.example"}, "password"),
        ({"startingOffset": "latest"}, "Did you mean startingOffsets"),
        ({"zebra": CANARY}, "no option zebra"),
        ({"Authorization": CANARY}, "bearerTokenEnv"),
        ({"header.X-Api-Key": CANARY}, "headersFile"),
        ({"startingOffsets": CANARY}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"cursors":{"0":"kanarek"},"counts":7}'}, "startingOffsets"),
        ({"endingOffsets": '{"kanarek":"a"}'}, "endingOffsets"),
        ({"startingOffsets": '{"0":"kanarek\\u00e5"}'}, "startingOffsets.*not a cursor"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        (
            {"startingOffsets": "latest", "startingTimestamp": "1"},
            "startingOffsets or startingTimestamp, not both",
        ),
        ({"startingTimestamp": CANARY}, "milliseconds"),
        ({"endingOffsetsByTimestamp": '{"0":"kanarek"}'}, "milliseconds since 1970 by partition"),
        ({"minPartitions": "0"}, "1 or more"),
        ({"partitions": CANARY}, "0,1"),
        ({"failOnDataLoss": CANARY}, "true or false"),
        ({"eventTypes": "a", "skipEventTypes": "b"}, "not both"),
        ({"eventTypes": ";"}, "eventTypes.*at least one"),
        ({"skipEventTypes": "kanarek*"}, "skipEventTypes.*whole"),
        ({"bearerTokenEnv": CANARY, "bearerTokenFile": "/a"}, "not both"),
        ({"tlsKeyFile": CANARY}, "tlsCertificateFile"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(given, match):
    """The error about a wrong option says what to do, and does not repeat its value."""
    with pytest.raises(ConfigurationError, match=match) as refused:
        read(**given)
    assert CANARY not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("reader", {"maxOffsetsPerTrigger": "5"}),
        ("streamReader", {"endingOffsets": '{"0":"a"}'}),
        ("streamReader", {"endingTimestamp": "1000"}),
    ],
)
def test_option_of_the_other_kind_of_read_is_refused(method, given):
    """A limit is only for streams and an end only for batches; each is refused in the other."""
    source = FeedSource({"path": URL, **given})
    with pytest.raises(ConfigurationError, match="stream"):
        getattr(source, method)(source.schema())


def test_certificate_of_the_client_changes_no_authority(tmp_path, monkeypatch):
    """With a client's certificate, the authorities are trusted that httpx trusts without one."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    certificate = tmp_path / "certificate.pem"
    issued = trustme.CA().issue_cert(common_name="billing")
    issued.private_key_and_cert_chain_pem.write_to_path(certificate)
    showing = Credentials({"tlsCertificateFile": str(certificate)}).open({}, dict)["verify"]
    assert showing.get_ca_certs() == httpx.create_ssl_context().get_ca_certs()
