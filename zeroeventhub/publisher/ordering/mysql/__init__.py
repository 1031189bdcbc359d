"""The orderings of MariaDB and MySQL."""

from zeroeventhub.publisher.ordering.mysql.observed import Observed
from zeroeventhub.publisher.ordering.mysql.sequenced import Sequenced

__all__ = ["Observed", "Sequenced"]
