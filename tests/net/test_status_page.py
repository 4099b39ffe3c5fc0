"""A real browser shows the live page of a real gateway (``FC-03``)."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.tools.javascript import Page, needs_browser, start_browser
from tests.tools.processes import Launcher
from twisted_msgproto.net.site.queue_figures import shown_bridge

websockets = pytest.importorskip("websockets")
from websockets.asyncio.client import connect  # noqa: E402

HOSTILE = "<img src=x onerror=\"document.title='broken into'\">"
BRIDGE = {
    **dict.fromkeys(("consumer", "state", "table", "error"), HOSTILE),
    "away": [dict.fromkeys(("location", "queue", "state", "error"), HOSTILE)],
    "known": [{"queue": HOSTILE}],
    "errors": {HOSTILE: 3},
}
WIDE = "document.documentElement.scrollWidth <= innerWidth"
LOOPBACK = "tcp:0:interface=127.0.0.1"

WHOLE_HEADS = """
(() => {
  const table = document.getElementById("consumers"), box = table.parentElement;
  const heads = [...table.querySelectorAll("th")];
  return heads.length === 4 && box.scrollWidth <= box.clientWidth
    && heads.every((head) => head.scrollWidth <= head.clientWidth);
})()
"""

INJECT = """
(() => {
  const figures = %s;
  source.close();
  asked = performance.now();
  shownTotal = figures.sessions_total;
  search += 1;  // an answer that is on its way is not shown
  show(figures);
  fillSessions({sessions: figures.sessions, found: 1, sessions_total: 1});
  return document.querySelectorAll("main img, main script").length;
})()
"""


@pytest.mark.slow
@needs_browser
def test_the_live_page_shows_what_comes_and_runs_nothing_of_a_peer__FC_03(
    launch: Launcher,
) -> None:
    queue = launch.directory / "queue"
    gateway = launch.command(
        [sys.executable, "-m", "twisted", "lumberjack", f"--endpoint={LOOPBACK}",
         f"--queue={queue}", f"--status={LOOPBACK}"],
    )  # fmt: skip
    status = gateway.address("status").removeprefix("tcp:")
    port = gateway.port("lumberjack")
    debugging = start_browser(launch)
    pictures = Path(os.environ.get("MSGPROTO_PICTURES", launch.directory))

    async def visit() -> None:
        async with connect(debugging, compression=None, max_size=None, origin=None) as browser:
            page = Page(browser)
            await page.open(f"http://{status}/")
            await page.shown("the queue has no consumer")
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(b"2W\0\0\0\x01" + b"2J\0\0\0\x01\0\0\0\x02{}")
                assert peer.recv(6) == b"2A\0\0\0\x01"
                text = await page.shown("messages kept\\s+1[^]*lumberjack-20")
                assert "1 shown of 1" in text
                figures = json.loads(
                    await page.value("fetch('status.json').then((answer) => answer.text())")
                )
            # What a peer can choose stands everywhere that something of a peer is shown.
            session = figures["sessions"][0]
            session |= {"client_id": HOSTILE, "peer": HOSTILE, "session": HOSTILE, HOSTILE: HOSTILE}
            figures["protocols"]["lumberjack"]["faults"] = {HOSTILE: 1}
            figures["safe"]["why"] = HOSTILE
            figures["offenders"]["worst"] = [
                {"protocol": HOSTILE, "address": HOSTILE, "reason": HOSTILE, "times": 1,
                 "seconds_ago": 1}
            ]  # fmt: skip
            figures["protocols"]["lumberjack"]["limits_met"] = {HOSTILE: 1}
            figures["protocols"]["lumberjack"]["states"] = {HOSTILE: 1}
            figures["protocols"][HOSTILE] = figures["protocols"]["lumberjack"]
            figures["queue"]["bridges"] = [shown_bridge(BRIDGE, 0.0)]
            figures["broker"]["queues"] = [
                {"space": HOSTILE, "name": HOSTILE, "waiting": 1, "in_flight": 0, "bytes": 1,
                 "consumers": 0, "oldest": None, "tries": 0}
            ]  # fmt: skip
            figures["broker"]["spaces"] = {HOSTILE: {
                "queues": 1, "waiting_messages": 1, "in_flight_messages": 0, "bytes": 1}
            }  # fmt: skip
            figures["queue"]["unheld"] = [{"directory": HOSTILE, "behind_messages": 7}]
            assert await page.value(INJECT % json.dumps(figures)) == 0
            assert HOSTILE in await page.shown("onerror")
            assert "7 behind: msgproto queue mend <img" in await page.shown("no gateway holds")
            assert "broken" not in await page.value("document.title")
            await page.open(f"http://{status}/")
            await page.shown("messages kept\\s+1")
            shown = {
                await page.look(pictures / "light.png"),
                await page.look(pictures / "dark.png", dark=True),
                await page.look(pictures / "phone.png", width=390, height=1400),
            }
            assert len(shown) == 3
            assert await page.value(WIDE), "a phone must not scroll sideways"
            figures["queue"]["consumers"] = [
                {"name": "spark-3f9c21aa", "offset": 17629, "behind_messages": 70,
                 "still_seconds": 0}
            ]  # fmt: skip
            await page.value(INJECT % json.dumps(figures))
            assert await page.value(WHOLE_HEADS), "a phone shows the heads of columns whole"
            gateway.end()
            await page.shown("does not answer")

    asyncio.run(asyncio.wait_for(visit(), 50))
