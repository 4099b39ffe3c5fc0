"""Node, packages from npm and a headless Chromium; who lacks them is told how to get them."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate

from tests.tools.processes import PROJECT, START_SECONDS, Launched, Launcher

PACKAGE = PROJECT / "clients" / "js"
MODULES = PACKAGE / "node_modules"


def node() -> str:
    return _program("node")


def npm() -> str:
    return _program("npm")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install nodejs npm)")
    return found


def installed(name: str) -> Path:
    """The directory of a package that ``clients/js`` is developed with, or skip the test."""
    directory = MODULES / name
    if not directory.is_dir():
        pytest.skip(f"{name} from npm is not installed in clients/js: ./run test installs it")
    return directory


NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
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
"""What becomes of a connection from the page that is shown."""


needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


def start_browser(launch: Launcher, trusted: Path | None = None) -> str:
    """Start a browser and return the address of its debugging protocol.

    It knows no authority of ours: ``trusted`` is a server's certificate whose key it accepts.
    """
    assert BROWSER is not None
    profile = f"--user-data-dir={launch.directory / 'profile'}"
    keys = [] if trusted is None else [f"--ignore-certificate-errors-spki-list={pin(trusted)}"]
    browser: Launched = launch.command([BROWSER, profile, *keys, *QUIET])
    return browser.line(r"DevTools listening on (ws://\S+)", seconds=START_SECONDS)[1]


def pin(certificate: Path) -> str:
    """The digest of a certificate's key, as browsers write it."""
    key = load_pem_x509_certificate(certificate.read_bytes()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


class Page:
    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.session: str | None = None

    async def ask(self, method: str, **parameters: Any) -> Any:
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(await self.socket.recv())
            if answer.get("id") == number:
                return answer

    async def open(self, url: str) -> None:
        self.session = None
        target = await self.ask("Target.createTarget", url=url)
        attached = await self.ask(
            "Target.attachToTarget", targetId=target["result"]["targetId"], flatten=True
        )
        self.session = attached["result"]["sessionId"]

    async def value(self, expression: str) -> Any:
        answer = await self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "destroyed" in answer.get("error", {}).get("message", ""):
            return await self.value(expression)  # the page was just being loaded
        return answer["result"]["result"]["value"]

    async def shown(self, wanted: str) -> Any:
        return await self.value(SHOWN.replace("WANTED", wanted))

    async def look(
        self,
        path: Path,
        *,
        width: int = 1100,
        height: int = 900,
        dark: bool = False,
        whole: bool = True,
    ) -> bytes:
        """Show the page at this size, light or dark, and keep a picture of it in ``path``.

        ``whole``: also of what is below the window.
        """
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        answer = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        picture = base64.b64decode(answer["result"]["data"])
        path.write_bytes(picture)
        return picture
