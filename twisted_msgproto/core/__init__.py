"""Floor 0: the pure machinery which every protocol shares. Imports the standard library only."""
