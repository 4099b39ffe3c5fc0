"""A web page that calls a method, follows topics, and sends drawings as attachments to all others.

Run it, then open the address which it prints, twice::

    python examples/umq_browser/server.py

It listens on two ports of this machine: one serves the page, the other speaks UMQ and lets in
pages of the first one alone.  The page uses the package in ``clients/js``.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

from twisted.internet import task
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.web.server import Site
from twisted.web.static import File

from twisted_msgproto.core.errors import Refused
from twisted_msgproto.umq import Code, MethodRegistry, Request, Topic, UmqServer, serve

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent / "clients" / "js" / "src"
PNG = b"\x89PNG\r\n\x1a\n"

methods = MethodRegistry()
viewers: set[Topic] = set()
visitors: set[UmqServer] = set()


@methods.register
def greet(name: str) -> str:
    """Say hello to NAME."""
    return f"Hello, {name}!"


@methods.register(with_request=True)
def readings(request: Request, topic_id: str) -> bool:
    """Publish a made-up reading to the caller's topic, twice a second."""
    topic = request.session.openTopic(topic_id)
    count = iter(range(1, 1_000_000))

    def publish() -> None:
        number = next(count)
        value = 20 + 4 * math.sin(number / 7) + random.uniform(-0.8, 0.8)
        topic.publish(json.dumps({"number": number, "value": value}))

    ticking = task.LoopingCall(publish)
    ticking.start(0.5)
    topic.whenClosed().addCallback(lambda reason: ticking.stop())
    return True


@methods.register(with_request=True)
def drawings(request: Request, topic_id: str) -> bool:
    """Publish what any page draws to the caller's topic."""
    topic = request.session.openTopic(topic_id)
    viewers.add(topic)
    topic.whenClosed().addCallback(lambda reason: viewers.discard(topic))
    return True


@methods.register(with_request=True)
def draw(request: Request) -> int:
    """Send the caller's drawing to every page; how many there are."""
    pictures = [one for one in request.attachments if isinstance(one, bytes)]
    if len(pictures) != 1 or not pictures[0].startswith(PNG):
        raise Refused("a drawing is one PNG", Code.FORMAT)
    return sum(topic.publish("drawing", pictures) for topic in list(viewers))


class Page(UmqServer):
    """The session of one page; each of them has an attribute that says how many there are."""

    def sessionEstablished(self) -> None:
        """Count it."""
        visitors.add(self)
        self.tell()

    def sessionLost(self, reason: object) -> None:
        """Count it no longer."""
        visitors.discard(self)
        self.tell()

    def tell(self) -> None:
        """Tell every page."""
        for page in visitors:
            page.setAttribute("visitors", str(len(visitors)))


def website() -> Any:
    """Return the page, with the package beside it."""
    root: Any = File(str(HERE))
    root.contentTypes = {**root.contentTypes, ".js": "text/javascript"}
    root.putChild(b"twisted-msgproto", File(str(PACKAGE)))
    return root


async def main(reactor: Any) -> None:
    """Listen on both ports; the page's origin is known when its port is."""
    page = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(Site(website()))
    origin = f"http://127.0.0.1:{page.getHost().port}"
    here = "tcp:0:interface=127.0.0.1"
    async with serve(here, server=Page, methods=methods, origins=[origin]) as server:
        print(f"umq listening on {server.addresses[0]}", flush=True)
        print(f"open {origin}/?umq={server.addresses[0]}", flush=True)
        await server.whenClosed()


if __name__ == "__main__":
    task.react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
