"""The operator's site of a gateway: a live page, figures, metrics, health, the broker's queues.

* :mod:`.root` says what each path answers, and :mod:`.http` how, to so many connections.
* :mod:`.service` listens, on a socket in the queue's directory and on a status endpoint, and says
  who may ask; :mod:`.client` asks a gateway, without a reactor.
* :mod:`.shapes` describes what a broker shows of its queues, and what can be done with them.
* :mod:`.figures` gathers what is shown, in slices, while connections live; :mod:`.store` reads the
  figures of the queue and what bridges say, in a thread; :mod:`.flow` remembers 15 minutes.
* :mod:`.verdict` says in one sentence whether all that was acknowledged is safe and landing.
* :mod:`.metrics` writes the figures as Prometheus reads them, :mod:`.stream` sends samples.
"""
