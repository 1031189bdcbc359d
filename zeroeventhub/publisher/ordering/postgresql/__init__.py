"""The orderings of PostgreSQL."""

from zeroeventhub.publisher.ordering.postgresql.gated import Gated
from zeroeventhub.publisher.ordering.postgresql.observed import Observed
from zeroeventhub.publisher.ordering.postgresql.sequenced import Sequenced

__all__ = ["Gated", "Observed", "Sequenced"]
