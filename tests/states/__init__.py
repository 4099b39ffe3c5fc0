"""State machines of Hypothesis: pairs of machines on a wire, and a queue with its bridge."""
