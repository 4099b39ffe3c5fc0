"""sABC on Twisted.  Read session, sides, reconnect."""
