"""A plot of what a suite found: a bar for each way, from its smallest to its largest value."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.result import Result

OURS, OTHERS, MARK = "#1f6f8b", "#b8bfc6", "#c2452d"


def plot(result: Result, folder: Path) -> None:
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
