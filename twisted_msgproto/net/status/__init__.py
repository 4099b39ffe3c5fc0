"""A gateway shows how it is: a live page, JSON, metrics and a health check.

* :mod:`.figures` gathers what is shown, in slices, while connections live.
* :mod:`.store` reads the figures of the queue, in a thread.
* :mod:`.verdict` says in one sentence whether all that was acknowledged is safe and landing.
* :mod:`.metrics` writes the figures as Prometheus reads them.
* :mod:`.resources` is the site, and :mod:`.stream` the stream of samples for the page.
* :mod:`.access` says who may ask, and :mod:`.options` what an operator configures.
"""
