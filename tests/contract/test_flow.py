"""Much is under way in both directions: nobody waits for somebody who waits for them."""

from __future__ import annotations

from typing import Any

from tests.contract.world import only, over_all
from tests.tools.sinks import SafeSink


class BothFull:
    """A client has written more than the server reads at a time, and its answers are as large."""

    @only("sabc", "sabc-ws", "umq")
    def test_a_client_reads_its_answers_while_its_own_octets_wait(self: Any) -> None:
        def echo(server: Any, message: Any) -> Any:
            return message.body

        world = self.world(SafeSink(), hooks={"message": echo})
        peer = world.join(full=1024)
        sent = [peer.send(b"x" * 65_536) for _ in range(100)]
        world.wait(1)
        for one in sent:
            self.successResultOf(one)
        self.assertEqual(world.lines(), [])

    @only("sabc", "sabc-ws", "umq")
    def test_and_so_it_is_when_each_answer_asks_again(self: Any) -> None:
        def echo(server: Any, message: Any) -> Any:
            return message.body

        world = self.world(SafeSink(), hooks={"message": echo})
        peer = world.join(full=1024)
        answered = []

        def again(result: Any, left: int) -> None:
            answered.append(left)
            if left:
                peer.send(b"x" * 65_536).addCallback(again, left - 1)

        for _ in range(100):
            peer.send(b"x" * 65_536).addCallback(again, 3)
        world.wait(1)
        self.assertEqual(len(answered), 400)
        self.assertEqual(world.lines(), [])


over_all(globals(), BothFull)
