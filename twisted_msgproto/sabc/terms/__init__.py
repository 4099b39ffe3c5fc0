"""What sABC's machines are made of, as data: events, tables, limits, counters."""
