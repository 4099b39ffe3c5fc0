"""This package writes the Delta table: its log, durable commits, and what lands in it.  It needs
neither Spark nor Twisted.
"""
