"""A gateway may have several processes behind the same ports (``processes = N``).

* :mod:`.shares` has the rule for dividing limits among them.
* :mod:`.ports` lets several processes listen on one port.
* :mod:`.worker` keeps one process running, and relays what it logs.
* :mod:`.supervisor` is the service that has all of them.
* :mod:`.watch` notices a process that hangs.
* :mod:`.asking` asks a process for its figures, and tells it to read its files again.
* :mod:`.figures` adds up the figures of all, and :mod:`.former` reads the queues that none of them
  has, for the one status page.
"""
