"""What a UMQ server may do with its calls: methods by name, and the stock server's topics."""
