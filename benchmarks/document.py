"""docs/benchmarks.md: made of what suites found, each in the place of what it had found before."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl

from benchmarks.measuring import Figure
from benchmarks.result import Goal, Result, Row

mpl.use("Agg")

import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "benchmarks" / "results.json"
BEGINNING = Path(__file__).with_name("document.md")
TARGETS, MACHINE = "<!-- targets -->\n", "<!-- machine -->\n"
OURS, OTHERS, MARK = "#1f6f8b", "#b8bfc6", "#c2452d"


def keep(result: Result) -> None:
    """Keep what a suite found, in the place of what it had found before."""
    kept = _kept()
    kept[result.suite] = result
    RESULTS.parent.mkdir(exist_ok=True)
    text = json.dumps([asdict(one) for one in kept.values()], indent=1)
    RESULTS.write_text(text + "\n")


def render() -> None:
    """Write the document and its plots."""
    results = list(_kept().values())
    for result in results:
        _plot(result, RESULTS.parent)
    latest = max((result.machine for result in results), key=lambda machine: machine["date"])
    text = BEGINNING.read_text().replace(TARGETS, "".join(_targets(results)))
    text = text.replace(MACHINE, "".join(f"| {name} | {of} |\n" for name, of in latest.items()))
    sections = "".join(_section(result, latest) for result in results)
    (DOCS / "benchmarks.md").write_text(text + sections)


def number(value: float) -> str:
    """Show a number with three digits that say something."""
    if math.isnan(value):
        return "unknown"
    for bound, form in ((100, ",.0f"), (10, ".1f"), (0.1, ".2f")):
        if abs(value) >= bound:
            return format(value, form)
    return f"{value:.3f}"


def _kept() -> dict[str, Result]:
    from benchmarks.suites import SUITES  # noqa: PLC0415 - suites are written down in their order

    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    results = {one["suite"]: _result(one) for one in found}
    return {name: results[name] for name in SUITES if name in results} | results


def _result(one: dict[str, object]) -> Result:
    result = Result(**one)  # type: ignore[arg-type] # as it was kept
    result.rows = [Row(**row) for row in result.rows]  # type: ignore[arg-type]
    result.goals = [Goal(**goal) for goal in result.goals]  # type: ignore[arg-type]
    return result


def _targets(results: Iterable[Result]) -> Iterable[str]:
    yield "| what | figure | target | reached | |\n|---|---|---:|---:|---|\n"
    for result in results:
        for goal in result.goals:
            figure = result.figure(goal)
            wanted = f"{'≤' if goal.at_most else '≥'} {goal.wanted:g}"
            if figure is None:
                yield f"| {goal.what} | {goal.column} | {wanted} | not measured | |\n"
                continue
            verdict = "yes" if goal.is_met(figure[0]) else f"**no**{goal.why and ': '}{goal.why}"
            reached = number(figure[0])
            yield f"| {goal.what} | {goal.column} | {wanted} | {reached} | {verdict} |\n"


def _section(result: Result, latest: dict[str, str]) -> str:
    longest = sorted(result.rows, key=lambda row: -len(row.figures))
    columns = list(dict.fromkeys(name for row in longest for name in row.figures))
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    lines += [_line(row, columns, result.plotted) for row in result.rows]
    other = {name: of for name, of in result.machine.items() if latest.get(name) != of}
    machine = "".join(f"; {name} {of}" for name, of in other.items())
    return (
        f"\n## {result.title}\n\n{result.text}\n\n"
        f"<!-- parsed, not run: it takes minutes -->\n    make bench SUITE={result.suite}\n\n"
        + "\n".join(lines)
        + f"\n\n![{result.title}](benchmarks/{result.suite}.svg)\n\n{result.size}{machine}.\n"
    )


def _line(row: Row, columns: list[str], plotted: str) -> str:
    if not row.figures:
        return f"| {row.way} | {row.note} |" + " |" * (len(columns) - 1)
    note = f", {row.note}" if row.note else ""
    cells = [_cell(row.figures.get(name), full=name == plotted) for name in columns]
    return f"| {row.way}{note} | {' | '.join(cells)} |"


def _cell(figure: Figure | None, *, full: bool) -> str:
    if figure is None:
        return ""
    middle, low, high = map(number, figure)
    return f"**{middle}** ({low} to {high})" if full and low != high else middle


def _plot(result: Result, folder: Path) -> None:
    """Draw a result into a folder, as PNG and SVG."""
    rows = [row for row in result.rows if result.plotted in row.figures]
    figures = [row.figures[result.plotted] for row in rows]
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.38 * len(rows)), layout="constrained")
    goals = {goal.way: goal.wanted for goal in result.goals if goal.column == result.plotted}
    places = range(len(rows))
    axes.barh(
        places,
        [middle for middle, _, _ in figures],
        xerr=[[m - low for m, low, _ in figures], [high - m for m, _, high in figures]],
        color=[OURS if row.ours else OTHERS for row in rows],
        error_kw={"elinewidth": 1, "ecolor": "#444444"},
    )
    wanted = [(goals[row.way], place) for place, row in enumerate(rows) if row.way in goals]
    if wanted:
        axes.scatter(*zip(*wanted, strict=True), marker="|", s=260, color=MARK, label="target")
        axes.legend(frameon=False)
    axes.set_yticks(list(places), [row.way.replace("`", "") for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(result.plotted)
    axes.spines[["top", "right"]].set_visible(False)
    # Neither a date nor names that change: what is the same is drawn the same.
    plt.rcParams["svg.hashsalt"] = result.suite
    figure.savefig(folder / f"{result.suite}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{result.suite}.png", dpi=120)
    plt.close(figure)
