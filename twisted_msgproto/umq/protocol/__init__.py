"""UMQ on Twisted.  Read exchange, calls, topics, session, sides, reconnect."""
