"""A running gateway can be asked and told things by its operator, over HTTP.

The gateway listens on a UNIX socket ``control`` in its queue's directory; only its own user may
connect to it.  Answers are JSON.

* :mod:`.shapes` describes what a broker shows of its queues, and what can be done with them.
* :mod:`.resources` is the site: it says what each path answers.
* :mod:`.site` bounds its connections, and :mod:`.service` listens.
* :mod:`.asking` is the other side: it asks a gateway, without a reactor.
* :mod:`.address` is where the socket lies, also below a directory with a long name.
"""
