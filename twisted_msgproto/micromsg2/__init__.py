"""MicroMsg2: messages to queues and topics, with negotiated extensions, both sides and a broker.

Read in this order: wire, machine, broker, protocol, service.
"""
