"""UMQ over real sockets: clients that are not ours, a real browser, the server as a process."""

import asyncio
import contextlib
import sys
from functools import partial
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.tools.javascript import FOREIGN, Page, needs_browser, start_browser
from tests.tools.processes import Launcher

websockets = pytest.importorskip("websockets")


SERVER = Path(__file__).parent / "server.py"


async def said(socket, *messages):
    for message in messages:
        await socket.send(message)


async def heard(socket, count):
    return [await socket.recv() for _ in range(count)]


async def closed(socket):
    """Everything which is said until the end, and the close code."""
    rest = []
    with contextlib.suppress(websockets.exceptions.ConnectionClosed):
        while True:
            rest.append(await socket.recv())
    return rest, socket.close_code


async def examples(socket):
    """What the source shows."""
    await said(socket, "H1:tok")
    assert await heard(socket, 1) == ["W1:welcome"]
    await said(socket, "C5AX12:How are you?")
    assert await heard(socket, 1) == ["R5AX12:Fine"]
    await said(socket, "C112:Brew coffee")
    assert await heard(socket, 1) == ["E112:418 I'm teapot"]
    await said(socket, "C121:Send me duck.png")
    assert await heard(socket, 2) == ["A1:R121:Sending image/png", b"\x89PNG"]
    await said(socket, "A2:C1AZ4:sum", b"12", "C7:How are you?", "-:Upstream download error")
    assert await heard(socket, 2) == ["R7:Fine", "R1AZ4:2, lost Upstream download error"]
    await said(socket, "C41:Subscribe on 'ABC'. TopicID=9A8Z")
    assert await heard(socket, 3) == ["R41:accepted", "T9A8Z:update1", "T9A8Z:update2"]
    await said(socket, "U9A8Z:", "U9A8Z:")
    assert await heard(socket, 1) == ["D9A8Z:"]
    await said(socket, "S:key=value", "X:nothing", "C42:attributes")
    assert await heard(socket, 1) == ['R42:{"key": "value"}']
    await said(socket, "X:key", "C:attributes")
    assert await heard(socket, 1) == ["R:{}"]
    await said(socket, "C13:I am ready, please send me a work as ID=4454")
    ready, work = await heard(socket, 2)
    assert ready == "R13:accepted"
    assert work.startswith("B1:4454:here is a work. Send me result as ID=")
    done = work.rpartition("=")[2]
    await said(socket, "R1:accepted", f"B88:{done}:Work done")
    assert await heard(socket, 1) == ["R88:Thank you!"]
    await said(socket, "B89:9999:nobody")
    assert await heard(socket, 1) == ["E89:2 callback not found"]
    await said(socket, "T77:who asked?")
    assert await heard(socket, 1) == ["U77:"]


FAULTS = [
    (["C1:before hello"], "F0:3 ", 1002),
    ([b"before hello"], "F0:3 ", 1002),
    (["H:"], "F0:5 ", 1000),
    (["H1:wrong"], "F0:1 rejected", 1000),
    (["H1:tok", "Z1:"], "F0:4 ", 1002),
    (["H1:tok", "C" + "9" * 8000 + ":"], "F0:3 ", 1002),
    (["H1:tok", b"nobody waits for this"], "F0:3 ", 1002),
    (["H1:tok", "C1:wait", "C01:wait"], "F0:3 ", 1002),
]


async def fault(messages, fatal, code, socket):
    await said(socket, *messages)
    rest, close_code = await closed(socket)
    assert rest[-1].startswith(fatal), (messages, rest)
    assert close_code == code, messages


def test_another_library_speaks_the_sources_examples_and_hears_of_its_faults(launch):
    """UM-01 … UM-16, UM-18, UM-19: each on a connection of its own."""
    server = launch.command([sys.executable, str(SERVER)])
    port = server.port("umq")

    async def run():
        for told in (examples, *(partial(fault, *given) for given in FAULTS)):
            async with connect(f"ws://localhost:{port}/", compression=None) as socket:
                await asyncio.wait_for(told(socket), 30)

    asyncio.run(run())


EXAMPLE = Path(__file__).parents[2] / "examples" / "umq_browser" / "server.py"

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
    umq = server.address("umq")
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
