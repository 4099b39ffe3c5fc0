"""The operator's site of a gateway: a live page, figures, metrics, health, the broker's queues."""
