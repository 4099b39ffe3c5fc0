"""This package writes the Delta table: its log, durable commits, and what lands in it.

It needs neither Spark nor Twisted.  A table or storage that cannot do what was asked is a
TableError, what an operator has to say otherwise a ConfigurationError, both of one line.
"""
