"""Tasks of Spark."""

import pickle

from zeroeventhub.bulk.offsets import Range
from zeroeventhub.spark.tasks import tasks_of


def test_task_keeps_its_ranges_on_its_way():
    """Tasks are pickled for executors, and an empty plan is one task without ranges."""
    ranges = [Range(0, "a", "b"), Range(1, "a", "c", 7)]
    (task,) = pickle.loads(pickle.dumps(tasks_of([ranges])))
    assert task.ranges == (*ranges,)
    (nothing,) = tasks_of([])
    assert nothing.ranges == ()
