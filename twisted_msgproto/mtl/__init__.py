"""MTL, broker-based messaging on ZeroMQ: a control flow of JSON requests, data flows of content.

Read in this order: wire, machine, sasl, protocol, service.
"""
