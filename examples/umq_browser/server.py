"""A web page which calls a method and shows the updates of a topic.

Run it, then open the address which it prints::

    python examples/umq_browser/server.py

It listens on two ports of this machine: one serves the page, the other speaks UMQ and lets in
pages of the first one alone.
"""

from pathlib import Path

from twisted.internet import reactor, task
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.web.server import Site
from twisted.web.static import File

from twisted_msgproto.umq import MethodRegistry, UmqServerFactory

methods = MethodRegistry()


@methods.register
def greet(name):
    """Say hello to NAME."""
    return f"Hello, {name}!"


@methods.register(with_request=True)
def ticks(request, topic_id):
    """Publish a count to the caller's topic, twice a second."""
    topic = request.session.openTopic(topic_id)
    count = iter(range(1, 1_000_000))
    ticking = task.LoopingCall(lambda: topic.publish(f"tick {next(count)}"))
    topic.whenClosed().addCallback(lambda reason: ticking.running and ticking.stop())
    ticking.start(0.5)
    return True


async def main():
    """Listen on both ports; the page's origin is known when its port is."""
    page = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(
        Site(File(str(Path(__file__).parent)))
    )
    origin = f"http://127.0.0.1:{page.getHost().port}"
    umq = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(
        UmqServerFactory(methods=methods, origins=[origin])
    )
    print(f"umq listening on tcp:127.0.0.1:{umq.getHost().port}", flush=True)
    print(f"open {origin}/?umq=ws://127.0.0.1:{umq.getHost().port}/", flush=True)


if __name__ == "__main__":
    from twisted.internet.defer import Deferred

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(main()))
    reactor.run()
