"""What a consumer decides, without I/O: which partition next, when to ask again, when to wait.

Decisions are generators of steps. The sync and the async consumer drive the same ones.
"""

from zeroeventhub._follow.crew import Crew
from zeroeventhub._follow.failures import Failures
from zeroeventhub._follow.follower import Follower
from zeroeventhub._follow.partition_follower import PartitionFollower
from zeroeventhub._follow.steps import (
    Advance,
    Await,
    Claim,
    Claimed,
    Deliver,
    Discover,
    End,
    Fetch,
    Inherit,
    Load,
    Outcome,
    Pause,
    Place,
    Redeliver,
    Release,
    Start,
    Step,
    Stop,
)

__all__ = [
    "Advance",
    "Await",
    "Claim",
    "Claimed",
    "Crew",
    "Deliver",
    "Discover",
    "End",
    "Failures",
    "Fetch",
    "Follower",
    "Inherit",
    "Load",
    "Outcome",
    "PartitionFollower",
    "Pause",
    "Place",
    "Redeliver",
    "Release",
    "Start",
    "Step",
    "Stop",
]
