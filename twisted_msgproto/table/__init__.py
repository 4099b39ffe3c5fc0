"""The Delta table: its log, durable commits, and what lands in it.  No Spark, no Twisted."""
