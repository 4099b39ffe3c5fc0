"""A real browser runs the example page: it calls a method and shows a topic's updates."""

import asyncio
import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

websockets = pytest.importorskip("websockets")
from websockets.asyncio.client import connect  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "umq_browser" / "server.py"

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "about:blank",
)

SHOWN = """
new Promise((resolve) => {
  const look = () => {
    const text = document.body ? document.body.innerText : "";
    if (/WANTED/.test(text)) resolve(text); else setTimeout(look, 20);
  };
  look();
})
"""

FOREIGN = """
new Promise((resolve) => {
  const socket = new WebSocket("URL", "umq");
  socket.onopen = () => resolve("let in");
  socket.onerror = () => resolve("kept out");
})
"""


FAULTY = """
new Promise((resolve) => {
  const socket = new WebSocket("URL", "umq");
  socket.onopen = () => socket.send("this is no message");
  socket.onclose = (event) => resolve(`clean: ${event.wasClean}`);
})
"""


class Page:
    """One page of a browser, through its debugging protocol."""

    def __init__(self, socket):
        self.socket = socket
        self.numbers = itertools.count(1)
        self.session = None

    async def ask(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(await self.socket.recv())
            if answer.get("id") == number:
                return answer

    async def open(self, url):
        self.session = None
        target = await self.ask("Target.createTarget", url=url)
        attached = await self.ask(
            "Target.attachToTarget", targetId=target["result"]["targetId"], flatten=True
        )
        self.session = attached["result"]["sessionId"]

    async def value(self, expression):
        answer = await self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "destroyed" in answer.get("error", {}).get("message", ""):
            return await self.value(expression)  # the page was just being loaded
        return answer["result"]["result"]["value"]

    async def shown(self, wanted):
        return await self.value(SHOWN.replace("WANTED", wanted))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_page_calls_a_method_and_shows_updates(launch, tmp_path):
    """The issue: UM-09, UM-12 from a real browser; a page of a foreign origin is kept out."""
    server = launch.command([sys.executable, str(EXAMPLE)])
    url = server.line(r"^open (\S+)$")[1]
    umq = server.address("umq").replace("tcp:", "ws://") + "/"
    browser = launch.command([BROWSER, f"--user-data-dir={tmp_path / 'profile'}", *QUIET])
    debugging = browser.line(r"DevTools listening on (ws://\S+)")[1]

    async def visit():
        async with connect(debugging, compression=None, max_size=None, origin=None) as socket:
            page = Page(socket)
            await page.open(url)
            text = await page.shown("Hello, world![^]*tick 3")
            assert "tick 1" in text and "tick 2" in text
            await page.value(
                "document.getElementById('name').value = 'Ünï';"
                "document.getElementById('form').requestSubmit()"
                " ?? 'sent'"
            )
            await page.shown("Hello, Ünï!")
            # HO-18: the server begins the closing hand-shake, and the browser sees no reset.
            assert await page.value(FAULTY.replace("URL", umq)) == "clean: true"
            await page.open("about:blank")
            assert await page.value(FOREIGN.replace("URL", umq)) == "kept out"

    asyncio.run(asyncio.wait_for(visit(), 50))
