"""The package in a real page, served as it is, without a bundler."""

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.tools.browser import Page, needs_browser, start_browser
from tests.tools.javascript import PACKAGE
from tests.tools.processes import Launcher

websockets = pytest.importorskip("websockets")
from websockets.asyncio.client import connect  # noqa: E402

HERE = Path(__file__).parent
(SHOWN,) = re.findall(r"^```html\n(.*?)^```$", (PACKAGE / "README.md").read_text(), re.M | re.S)

SABC = """
(async () => {
  const { SabcClient } = await import("./twisted-msgproto/index.js");
  const client = await SabcClient.connect("URL", {
    clientId: "page",
    onRequest: ({ text }) => `${text} is done`,
  });
  const texts = [(await client.request("Grüße")).text, (await client.request("push")).text];
  const octets = (await client.request(Uint8Array.of(255, 0, 254))).body;
  await client.close();
  return JSON.stringify([...texts, [...octets], client.state]);
})()
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    extensions_map: ClassVar = {**SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript"}

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A web server for the files of a directory, which has the package's sources in it."""
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "twisted-msgproto").symlink_to(PACKAGE / "src")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.mark.slow
@needs_browser
def test_the_page_of_the_readme_and_sabc_in_it(
    launch: Launcher, site: ThreadingHTTPServer, tmp_path: Path
) -> None:
    """FC-08, SA-25: both protocols from a page, whose origin is listed."""
    origin = f"http://127.0.0.1:{site.server_port}"
    server = launch.command([sys.executable, str(HERE / "server.py"), origin])
    umq, sabc = (server.address(name).replace("tcp:", "ws://") for name in ("umq", "sabc"))
    assert "ws://localhost:5048" in SHOWN
    page_text = SHOWN.replace("ws://localhost:5048", umq)
    (tmp_path / "site" / "index.html").write_text(page_text)
    debugging = start_browser(launch)

    async def visit() -> None:
        async with connect(debugging, compression=None, max_size=None, origin=None) as socket:
            page = Page(socket)
            await page.open(f"{origin}/")
            await page.shown("Hello, page!")
            said = await page.value(SABC.replace("URL", f"{sabc}/"))
            assert said == '["Grüße","work is done",[255,0,254],"closed"]'

    asyncio.run(asyncio.wait_for(visit(), 150))
