"""Floor 0: the pure machinery that every protocol shares. Imports the standard library only."""
