"""Lumberjack on Twisted: the reader's server, the writer's client, and the shipper above it."""
