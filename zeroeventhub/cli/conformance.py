"""`zeroeventhub conformance`: check a publisher, or be one that misbehaves."""

import json
import sys
from pathlib import Path

import click
import httpx

from zeroeventhub.cli.options import PATIENCE, as_json, header_options
from zeroeventhub.conformance import Outcome, Result, all_checks, check_feed
from zeroeventhub.conformance.misbehaving import misbehave
from zeroeventhub.conformance.report import as_document, as_junit, as_lines, summary
from zeroeventhub.conformance.subject import redacted
from zeroeventhub.errors import ConfigurationError, TransientError

__all__ = ["conformance"]

FAILED = 1
MISUSED = 2
_COLOURS = {"pass": "green", "note": "yellow", "fail": "red", "skip": "cyan"}


@click.command()
@click.argument("url", required=False)
@header_options
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="How many partitions the feed has, if it only speaks ZeroEventHub v1.",
)
@as_json
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to a file, as JUnit does, for continuous integration.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Make this check only; again for more.")
@click.option("--list", "list_", is_flag=True, help="List the checks, and end.")
@click.option("--serve", is_flag=True, help="Be a publisher that misbehaves, to try clients on.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535))
def conformance(
    *,
    url: str | None,
    headers: list[tuple[str, str]],
    partitions: int | None,
    as_json: bool,
    junit: Path | None,
    only: tuple[str, ...],
    list_: bool,
    serve: bool,
    port: int,
) -> None:
    """Check the publisher at URL against the specification, without changing anything.

    Exit codes: 0 nothing failed, 1 a check failed, 2 there was nothing to check.
    """
    if list_:
        _list(as_json=as_json)
        return
    if serve:
        if url is not None:
            raise ConfigurationError("--serve is a publisher itself: give no URL.")
        misbehave(port, lambda address: click.echo(f"Scenarios: {address}/"))
        return
    if url is None:
        raise ConfigurationError("Give the URL of the feed to check, or --list or --serve.")
    results = _check(url, headers, partitions, only, quiet=as_json)
    shown = redacted(url)
    if junit is not None:
        _write(junit, as_junit(shown, results))
    click.echo(json.dumps(as_document(shown, results), indent=2) if as_json else summary(results))
    if any(result.outcome is Outcome.FAIL for result in results):
        sys.exit(FAILED)


def _check(
    url: str,
    headers: list[tuple[str, str]],
    partitions: int | None,
    only: tuple[str, ...],
    *,
    quiet: bool,
) -> list[Result]:
    """Check a feed, and show each result as it comes."""
    results = []
    with httpx.Client(headers=headers, timeout=PATIENCE) as http:
        try:
            for result in check_feed(url, http, partitions=partitions, only=only):
                results.append(result)
                if not quiet:
                    _show(result)
        except TransientError as error:
            raise _Unreachable(str(error)) from None
    return results


class _Unreachable(click.ClickException):
    """Say that no publisher answered, so that nothing was checked."""

    exit_code = MISUSED


def _list(*, as_json: bool) -> None:
    checks = all_checks().values()
    if as_json:
        names = [{"name": c.name, "section": c.section, "sentence": c.sentence} for c in checks]
        click.echo(json.dumps(names, indent=2))
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        click.echo(f"{check.name:{width}}  {check.section:4}  {check.sentence}")


def _show(result: Result) -> None:
    first, *rest = as_lines(result)
    click.echo(click.style(first[:4], fg=_COLOURS[result.outcome]) + first[4:])
    for line in rest:
        click.echo(line)


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}.") from None
