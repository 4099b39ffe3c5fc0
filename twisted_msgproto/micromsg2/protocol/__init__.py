"""MicroMsg2 on Twisted.  Read: session (both sides), server, client."""
