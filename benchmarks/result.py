"""What a suite found, as it is kept and shown."""

from dataclasses import dataclass, field

from benchmarks.measuring import Figure


@dataclass
class Row:
    """Hold the figures of one way, or why there are none.

    Attributes:
        way: its name.
        figures: by the name of their column.
        note: what else there is to say.
        ours: whether it is one of this package.
    """

    way: str
    figures: dict[str, Figure] = field(default_factory=dict)
    note: str = ""
    ours: bool = False


@dataclass
class Goal:
    """Compare a figure with what was aimed at.

    Attributes:
        what: in the words of the summary.
        way: the row of the figure.
        column: its column.
        wanted: the bound.
        at_most: whether the bound is an upper one.
        why: why the bound is not kept to, while it is not.
    """

    what: str
    way: str
    column: str
    wanted: float
    at_most: bool = False
    why: str = ""

    def is_met(self, reached: float) -> bool:
        """Tell whether a figure keeps to the bound."""
        return reached <= self.wanted if self.at_most else reached >= self.wanted


@dataclass
class Result:
    """Hold what a suite found.

    Attributes:
        suite: its name.
        title: what it is about.
        text: how it was measured.
        plotted: the column that its plot shows.
        rows: what was found.
        goals: what was aimed at.
        size: how much was measured, in words.
        machine: what it was measured on.
    """

    suite: str
    title: str
    text: str
    plotted: str
    rows: list[Row]
    goals: list[Goal] = field(default_factory=list)
    size: str = ""
    machine: dict[str, str] = field(default_factory=dict)

    def figure(self, goal: Goal) -> Figure | None:
        """Return the figure that a goal is about, if it was measured."""
        for row in self.rows:
            if row.way == goal.way:
                return row.figures.get(goal.column)
        return None
