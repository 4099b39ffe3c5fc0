"""A server process for the tests: the application of the source's examples."""

import json
import re

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString

from twisted_msgproto.core.errors import Refused
from twisted_msgproto.umq import Reply, UmqServer, UmqServerFactory


class Application(UmqServer):
    def authorise(self, hello):
        if not hello.payload.startswith("tok"):
            raise Refused("rejected", 1)

    def welcome(self, hello):
        return "welcome"

    def callReceived(self, request):
        text = request.payload
        if text == "How are you?":
            return "Fine"
        if text == "Brew coffee":
            raise Refused("I'm teapot", 418)
        if text.startswith("Send me"):
            return Reply("Sending image/png", [b"\x89PNG"])
        if text == "sum":
            first, second = request.attachments
            return f"{len(first)}, lost {second.text}"
        if text == "wait":
            return Deferred()
        if text == "attributes":
            return json.dumps(dict(self.attributes))
        if match := re.fullmatch(r"Subscribe on '\w+'\. TopicID=(\w+)", text):
            self.later(self.updates, match[1])
            return "accepted"
        if match := re.fullmatch(r"I am ready, please send me a work as ID=(\w+)", text):
            self.later(self.work, match[1])
            return "accepted"
        raise Refused("no route", 7)

    def later(self, function, *arguments):
        reactor.callLater(0, function, *arguments)

    def updates(self, id):
        topic = self.openTopic(id)
        topic.publish("update1")
        topic.publish("update2")

    def work(self, id):
        done = self.registerCallback(lambda request: "Thank you!")
        self.callback(id, f"here is a work. Send me result as ID={done}").addErrback(lambda _: None)


def main():
    factory = UmqServerFactory()
    factory.protocol = Application
    listening = serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
    listening.addCallback(
        lambda port: print(f"umq listening on tcp:127.0.0.1:{port.getHost().port}", flush=True)
    )
    reactor.run()


main()
