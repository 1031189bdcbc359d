"""Places in history that are gone, as a read meets them."""

import logging

import pytest

from zeroeventhub.errors import Diverged, Gone, Trimmed

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install --group spark")

from zeroeventhub.spark.loss import Loss

TRIMMED = Trimmed("Below the history.", earliest="5")


def history(lowest):
    """Return what answers with the cursor that it was asked for, if that is still there."""

    def ask(cursor):
        if cursor != "_first" and int(cursor) < lowest:
            raise Trimmed("Below the history.", earliest=str(lowest) if lowest < 100 else None)
        return cursor

    return ask


def refuse(error):
    """Return what always refuses."""

    def ask(_):
        raise error

    return ask


@pytest.mark.parametrize("error", [TRIMMED, Diverged("Another history.")])
def test_loss_that_stops(error, caplog):
    """A place that is gone stops a read with its partition and advice."""
    with pytest.raises(type(error), match=r"Partition 3 .* Set failOnDataLoss to false") as raised:
        Loss(fails=True).survive(3, "1", refuse(error))
    assert getattr(raised.value, "earliest", "5") == "5"
    assert caplog.messages == []


@pytest.mark.parametrize(("lowest", "place"), [(1, "1"), (7, "7"), (100, "_first")])
def test_what_is_trimmed_is_passed_over(lowest, place, caplog):
    """A read goes on at the earliest place that there is, and says what was passed over."""
    assert Loss(fails=False).survive(3, "1", history(lowest)) == place
    reports = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(reports) == (lowest > 1)
    assert all("partition 3 behind the cursor 1 are gone" in one.getMessage() for one in reports)


def test_end_that_is_trimmed_too():
    """Where the end of a read is gone as well, that is said, and not asked for ever."""
    with pytest.raises(Trimmed, match="Partition 3 cannot be read on"):
        Loss(fails=False).survive(3, "1", refuse(TRIMMED))


def test_history_that_is_another_one(caplog):
    """A place of another history has no answer, which is reported."""
    assert Loss(fails=False).survive(3, "1", refuse(Diverged("Another."))) is None
    assert "Going on at its head" in caplog.text


def test_partition_that_is_gone(caplog):
    """A partition that is gone with what was planned stops a read, or is reported."""
    with pytest.raises(Gone, match="Partition 3 of the feed is gone"):
        Loss(fails=True).pass_over(3)
    Loss(fails=False).pass_over(3)
    assert "Partition 3 of the feed is gone" in caplog.text
