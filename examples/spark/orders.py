"""The shop's orders in Spark: all of them as a table, and as files to which every run adds."""

from pyspark.sql import SparkSession

from zeroeventhub.spark import register

spark = SparkSession.builder.getOrCreate()
register(spark)
url = "http://127.0.0.1:8000/orders"

orders = spark.read.format("zeroeventhub").schema("customer STRING, amount DOUBLE").load(url)
orders.groupBy("customer").sum("amount").show()

stream = spark.readStream.format("zeroeventhub").option("startingOffsets", "earliest").load(url)
files = stream.writeStream.option("checkpointLocation", "checkpoint").trigger(availableNow=True)
files.start("orders").awaitTermination()
