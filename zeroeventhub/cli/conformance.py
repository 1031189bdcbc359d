"""`zeroeventhub conformance`: check a publisher, or serve one that misbehaves."""

import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import click
import httpx

from zeroeventhub.cli.options import FILE, TIMEOUT, as_json, http_options, port_option
from zeroeventhub.cli.output import as_misuse, report, write_file
from zeroeventhub.client.connection_pool import open_httpx
from zeroeventhub.client.redaction import without_secrets
from zeroeventhub.conformance import Outcome, all_checks, check_feed
from zeroeventhub.conformance.misbehaving import misbehaving
from zeroeventhub.conformance.report import as_document, as_junit, as_lines, summary
from zeroeventhub.errors import ConfigurationError

_COLOURS = {"pass": "green", "note": "yellow", "fail": "red", "skip": "cyan"}


@click.command()
@click.argument("url", required=False)
@http_options
@as_json
@click.option(
    "--junit",
    type=FILE,
    help="Write the results to this file as JUnit XML, for continuous integration.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Run only this check; repeatable.")
@click.option(
    "--writable",
    is_flag=True,
    help="Also make the checks that append events to the log; these events stay there.",
)
@click.option("--list", "list_", is_flag=True, help="List the checks and exit.")
@click.option(
    "--serve", is_flag=True, help="Serve a publisher that misbehaves on purpose, to test clients."
)
@port_option
def conformance(
    *,
    url: str | None,
    headers: list[tuple[str, str]],
    partitions: int | None,
    as_json: bool,
    junit: Path | None,
    only: tuple[str, ...],
    writable: bool,
    list_: bool,
    serve: bool,
    port: int,
) -> None:
    """Check the publisher at URL against the specification.

    Without --writable the checks change nothing. Exit codes: 0 no check failed, 1 a check failed, 2
    there was nothing to check.
    """
    if list_:
        _list(as_json=as_json)
        return
    if serve:
        if url is not None:
            raise ConfigurationError("--serve starts a publisher of its own: give no URL.")
        with misbehaving(port) as address, suppress(KeyboardInterrupt):
            click.echo(f"Scenarios: {address}/")
            Event().wait()
        return
    if url is None:
        raise ConfigurationError("Give the URL of the feed to check, or --list or --serve.")
    results = []
    with as_misuse(), open_httpx(httpx.Client, headers=headers, timeout=TIMEOUT) as http:
        for result in check_feed(url, http, partitions=partitions, only=only, writable=writable):
            results.append(result)
            if not as_json:
                first, *rest = as_lines(result)
                mark = click.style(first[:4], fg=_COLOURS[result.outcome])
                click.echo("\n".join([mark + first[4:], *rest]))
    shown = without_secrets(httpx.URL(url))
    if junit is not None:
        write_file(junit, as_junit(shown, results))
    report(as_document(shown, results), [summary(results)], as_json=as_json, indent=2)
    if any(result.outcome is Outcome.FAIL for result in results):
        sys.exit(1)


def _list(*, as_json: bool) -> None:
    checks = all_checks().values()
    width = max(len(check.name) for check in checks)
    report(
        [{"name": c.name, "section": c.section, "sentence": c.sentence} for c in checks],
        (f"{check.name:{width}}  {check.section:4}  {check.sentence}" for check in checks),
        as_json=as_json,
        indent=2,
    )
