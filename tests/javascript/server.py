"""UMQ and sABC on WebSocket in one process, for clients in JavaScript: they are told to do much.

``server.py [--tls CERTIFICATE KEY] [ORIGIN…]``
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString

from twisted_msgproto.core.errors import Refused
from twisted_msgproto.sabc import SabcServer, SabcServerFactory
from twisted_msgproto.umq import Hub, MethodRegistry, Reply, UmqServer, UmqServerFactory


class SoldOut(Exception):
    """A caller hears of this one."""


class Flood:
    """Publishes updates for as long as the subscriber reads, then closes the topic."""

    def __init__(self, topic: Any, count: int, payload: str) -> None:
        self.topic, self.left, self.payload = topic, count, payload
        self.paused = False

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        while self.left and not self.paused:
            self.left -= 1
            self.topic.write(self.payload.encode())
        if not self.paused:
            self.topic.close()

    def stopProducing(self) -> None:
        self.left = 0


def methods() -> MethodRegistry:
    """What UMQ clients may call, beside what a hub has."""
    registry = Hub().methods
    registry.error(SoldOut)

    @registry.register
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    @registry.register(with_request=True)
    def ticks(request: Any, id: str) -> bool:
        """Publish a few numbers to the caller's topic."""
        topic = request.session.openTopic(id)
        for number in range(1, 6):
            topic.publish(f"tick {number}")
        return True

    @registry.register
    def buy(what: str) -> None:
        raise SoldOut(f"no {what} left")

    @registry.register(with_request=True)
    def echo(request: Any, text: str) -> Any:
        attachments = [one if isinstance(one, bytes) else b"lost" for one in request.attachments]
        return Reply(text, attachments)

    @registry.register
    def large(count: int, nbytes: int) -> Any:
        """Answer with so many attachments, each of so many bytes."""
        return Reply('"large"', [bytes(nbytes)] * count)

    @registry.register(with_request=True)
    def flood(request: Any, id: str, count: int, characters: int) -> bool:
        """Publish to the caller's topic as fast as the caller reads, then close the topic."""
        topic = request.session.openTopic(id)
        producer = Flood(topic, count, "x" * characters)
        topic.registerProducer(producer, True)
        # Behind the answer: a caller reads no further while too many updates wait.
        reactor.callLater(0, producer.resumeProducing)  # type: ignore[attr-defined]
        return True

    @registry.register(with_request=True)
    async def work(request: Any, callback: str) -> list[str]:
        """Give work to the caller's callback, twice at once."""
        session = request.session
        both = [session.callback(callback, text, [text.encode()]) for text in ("one", "two")]
        return [(await answer).payload for answer in both]

    @registry.register(with_request=True)
    def attribute(request: Any, name: str) -> Any:
        return request.session.attributes.get(name)

    @registry.register(name="set", with_request=True)
    def set_attribute(request: Any, name: str, value: str) -> bool:
        request.session.setAttribute(name, value, [value.encode()])
        return True

    @registry.register(with_request=True)
    async def ask(request: Any, payload: str) -> str:
        """Call the caller."""
        return str((await request.session.call(payload)).payload)

    @registry.register(with_request=True)
    async def title(request: Any) -> str:
        """Call a method of the caller's by its name."""
        return f"{await request.session.remote.title()}!"

    @registry.register(with_request=True)
    async def listen(request: Any, count: int) -> list[str]:
        """Subscribe to the caller's ticks."""
        ticks = request.session.subscribe(lambda id: f'["ticks","{id}"]')
        heard = []
        async for update in ticks:
            heard.append(update.payload)
            if len(heard) == count:
                break
        ticks.unsubscribe()
        return heard

    @registry.register(with_request=True)
    def drop(request: Any) -> None:
        """End the caller's session without an answer."""
        request.session.closeSession()

    return registry


class Umq(UmqServer):
    """Lets in who says ``me:secret`` or nothing."""

    def authorise(self, hello: Any) -> None:
        if hello.payload not in ("", "me:secret"):
            raise Refused("rejected", 1)


class Sabc(SabcServer):
    """Does what the text of a request says."""

    def requestReceived(self, message: Any) -> Any:
        text = message.body.decode("utf-8", "replace")
        if text == "push":
            return self.request(b"work", headers={"n": "1"}).addCallback(lambda one: one.body)
        if text == "error":
            self.sendError(418, "teapot")
            self.sendOnly(b"news")
            return None
        if text.startswith("flood "):
            for number in range(int(text[6:])):
                self.sendOnly(b"%d " % number + bytes(1 << 16))
            return None
        if text == "refuse":
            raise Refused("not today", 409)
        if text == "drop":
            self.loseSession()
            return None
        return message.body


async def listen(factory: Any, name: str, endpoint: str = "tcp:0:interface=127.0.0.1") -> None:
    port = await serverFromString(reactor, endpoint).listen(factory)
    host = port.getHost()
    print(f"{name} listening on tcp:{host.host}:{host.port}", flush=True)


async def main(words: list[str]) -> None:
    tls, origins = (words[1:3], words[3:]) if words[:1] == ["--tls"] else ((), words)
    umq = UmqServerFactory(methods=methods(), origins=origins)
    umq.protocol = Umq
    await listen(umq, "umq")
    if tls:
        certificate, key = tls
        words = ["ssl:0:interface=127.0.0.1", f"certKey={certificate}", f"privateKey={key}"]
        await listen(umq, "secure", ":".join(words))
    sabc = SabcServerFactory()
    sabc.protocol = Sabc
    await listen(sabc.webSocketFactory(origins), "sabc")


if __name__ == "__main__":
    from twisted.internet.defer import Deferred

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(main(sys.argv[1:])))  # type: ignore[attr-defined]
    reactor.run()  # type: ignore[attr-defined]
