"""What a UMQ server may do with its calls: methods by name, topics by name, the stock server."""
