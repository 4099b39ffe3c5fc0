"""Wires: what stands between a link and its transport, on byte streams and on WebSocket."""
