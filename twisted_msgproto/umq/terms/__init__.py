"""What UMQ's machines are made of, as data: events, states and tables, limits, counters."""
