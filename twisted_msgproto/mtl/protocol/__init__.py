"""MTL on Twisted.  Read: link and server (one side), wires, flows and client (the other)."""
