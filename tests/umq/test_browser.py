"""A real browser runs the example page: calls, topics, attachments, and coming back."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.tools.browser import Page, needs_browser, start_browser
from tests.tools.processes import Launcher

websockets = pytest.importorskip("websockets")
from websockets.asyncio.client import connect  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "umq_browser" / "server.py"

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

DRAW = """
(() => {
  const canvas = document.getElementById("canvas");
  const box = canvas.getBoundingClientRect();
  const at = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, buttons: 1, clientX: box.left + x * box.width, clientY: box.top + y * box.height,
  }));
  canvas.setPointerCapture = () => {};
  at("pointerdown", 0.1, 0.5);
  for (let x = 0.1; x < 0.9; x += 0.02) at("pointermove", x, 0.5 - 0.35 * Math.sin(x * 12));
  document.getElementById("send").click();
  return new Promise((resolve) => {
    const look = () => {
      const image = document.querySelector("#wall img");
      if (image && image.complete) resolve(image.naturalWidth); else setTimeout(look, 20);
    };
    look();
  });
})()
"""

WIDE = "document.documentElement.scrollWidth <= innerWidth"


@pytest.mark.slow
@needs_browser
def test_a_browser_page_calls_draws_and_shows_updates(launch: Launcher) -> None:
    """The issue: UM-09, UM-12 from a real browser; a page of a foreign origin is kept out."""
    server = launch.command([sys.executable, str(EXAMPLE)])
    url = server.line(r"^open (\S+)$")[1]
    umq = server.address("umq").replace("tcp:", "ws://") + "/"
    debugging = start_browser(launch)
    pictures = launch.directory

    async def visit() -> None:
        async with connect(debugging, compression=None, max_size=None, origin=None) as socket:
            page = Page(socket)
            await page.open(url)
            text = await page.shown("open[^]*1 page is open[^]*Hello, world![^]*tick 3")
            assert "tick 1" in text and "tick 2" in text
            await page.value(
                "document.getElementById('name').value = 'Ünï';"
                "document.getElementById('form').requestSubmit()"
                " ?? 'sent'"
            )
            await page.shown("Hello, Ünï!")
            # FC-08: a drawing goes to the server and comes back as an attachment.
            assert await page.value(DRAW) == 320
            shown = {
                await page.look(pictures / "light.png"),
                await page.look(pictures / "dark.png", dark=True),
                await page.look(pictures / "phone.png", width=390, height=1400),
            }
            assert len(shown) == 3
            assert await page.value(WIDE), "a phone must not scroll sideways"
            # HO-18: the server begins the closing hand-shake, and the browser sees no reset.
            assert await page.value(FAULTY.replace("URL", umq)) == "clean: true"
            await page.open("about:blank")
            assert await page.value(FOREIGN.replace("URL", umq)) == "kept out"

    asyncio.run(asyncio.wait_for(visit(), 150))


@pytest.mark.slow
@needs_browser
def test_a_page_says_so_when_its_server_is_gone(launch: Launcher) -> None:
    """FC-08: what is asked for then waits, or fails in words."""
    server = launch.command([sys.executable, str(EXAMPLE)])
    url = server.line(r"^open (\S+)$")[1]
    debugging = start_browser(launch)

    async def visit() -> None:
        async with connect(debugging, compression=None, max_size=None, origin=None) as socket:
            page = Page(socket)
            await page.open(url)
            await page.shown("Hello, world!")
            server.end()
            await page.shown("down: ")
            assert await page.value("document.getElementById('send').disabled")

    asyncio.run(asyncio.wait_for(visit(), 150))
