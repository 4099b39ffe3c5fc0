"""MTL on Twisted.  Read: link and server (one side), flows and client (the other)."""
