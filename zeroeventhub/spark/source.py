"""The data source: what Spark asks for by `format("zeroeventhub")`."""

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.spark.batch_reader import BatchReader, PushingReader
from zeroeventhub.spark.columns import default_schema
from zeroeventhub.spark.options import LATEST, Options, read_options
from zeroeventhub.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FeedSource", "register"]


class FeedSource(DataSource):
    """Read a feed; see `Options` for what can be asked of it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "zeroeventhub"

    def schema(self) -> StructType:
        """Return the columns where nobody names others."""
        return default_schema(with_headers=self._options().with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises:
            ConfigurationError: an option or a column cannot be meant.
        """
        options = self._options()
        if options.max_offsets is not None:
            raise ConfigurationError("maxOffsetsPerTrigger is for streams, and this is a batch.")
        return (PushingReader if options.pushes_filters else BatchReader)(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream.

        Raises:
            ConfigurationError: an option or a column cannot be meant.
        """
        options = self._options()
        if options.ending != LATEST:
            raise ConfigurationError(
                "A stream does not end at an offset: leave it away, or read a batch."
            )
        return StreamReader(schema, options)

    def _options(self) -> Options:
        return read_options(self.options)


def register(spark: "SparkSession") -> None:
    """Let a session read feeds by `format("zeroeventhub")`."""
    try:
        spark.dataSource.register(FeedSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses what it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
