"""What ``./run chaos`` does: a module for each kind, with its rows."""
