"""What both sides of MTL are made of, data only: limits, states with their tables, events."""
