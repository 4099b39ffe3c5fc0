"""The package for JavaScript against our real servers: in Node, and in a page without a bundler."""

import asyncio
import json
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from websockets.asyncio.client import connect

from tests.tools.certificates import Authority
from tests.tools.javascript import (
    FOREIGN,
    PACKAGE,
    Page,
    installed,
    needs_browser,
    node,
    start_browser,
)
from tests.tools.processes import PROJECT, Launched, Launcher
from twisted_msgproto.queue import QueueReader

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def run(launch: Launcher, script: str, *arguments: str) -> Launched:
    """Start a script of this directory in Node."""
    installed("ws")  # an older Node has no WebSocket of its own
    return launch.command([node(), str(HERE / script), *arguments])


def as_websocket(address: str) -> str:
    return address.replace("tcp:", "ws://") + "/"


def as_secure(address: str) -> str:
    return re.sub(r"^\w+:", "wss://", address) + "/"


def test_calls_callbacks_topics_attributes_and_what_comes_back(launch: Launcher) -> None:
    """FC-08, UM-09 … UM-16, SA-12 … SA-24, from Node."""
    authority = Authority(launch.directory)
    pair = authority.server()
    words = ["--tls", str(pair.cert), str(pair.key)]
    server = launch.command([sys.executable, str(HERE / "server.py"), *words])
    urls = [as_websocket(server.address(name)) for name in ("umq", "sabc")]
    secure = as_secure(server.address("secure"))
    client = run(launch, "live.mjs", *urls, secure, str(authority.cert))
    assert client.wait() == 0, client.output
    assert client.lines == [f"{what}: all of it holds" for what in ("umq", "sabc", "TLS")]
    # UM-19, UM-21, SA-17: programs that are slower than the network.
    slow = run(launch, "slow.mjs", *urls)
    assert slow.wait() == 0, slow.output
    assert slow.lines == ["files in pieces", "paused", "bounded", "working"]


def test_what_the_stock_servers_acknowledge_is_in_the_queue(launch: Launcher) -> None:
    """UM-17, SA-08, SA-16: log-ins, and an answer that says "on disk"."""
    config = launch.directory / "gateway.toml"
    config.write_text(
        "[queue]\ndirectory = 'spool'\n"
        "[umq]\nendpoint = ['tcp:0:interface=127.0.0.1']\nauth = ['memory:bob:secret']\n"
        "limit = ['login-delay=0.05']\n"
        "[sabc]\nwebsocket = ['tcp:0:interface=127.0.0.1']\nauth = ['memory:bob:secret']\n"
        "limit = ['login-delay=0.05']\n"
    )
    gateway = launch("gateway", "--config", str(config))
    urls = [as_websocket(gateway.address("umq")), gateway.address("sabc")]
    client = run(launch, "stock.mjs", *urls)
    assert client.wait() == 0, client.output
    gateway.end()
    reader = QueueReader(launch.directory / "spool")
    rows = [row for batch in reader.read(reader.begin(), reader.end()) for row in batch.to_pylist()]
    kept = {(row["protocol"], row["destination"], row["body"]): row for row in rows}
    event = kept["umq", "event", b'["event",{"clicked":"here"}]']
    assert event["attachments"] == [b"\1\2"]
    assert event["client_id"] == "bob"
    message = kept["sabc", None, b"safe on disk"]
    assert dict(message["fields"]) == {"colour": "red"}


def test_the_example_stores_its_events(launch: Launcher) -> None:
    """FC-08: docs/javascript.md shows it."""
    words = ["umq", "-e", "tcp:0:interface=127.0.0.1", "--queue", "spool"]
    server = launch(*words, module="twisted")
    installed("ws")
    example = PROJECT / "examples" / "javascript" / "events.mjs"
    client = launch.command([node(), str(example), as_websocket(server.address("umq"))])
    assert client.wait() == 0, client.output
    pages = ["/", "/products", "/checkout"]
    assert client.lines == [f"{page} is on disk" for page in pages]
    server.end()
    reader = QueueReader(launch.directory / "spool")
    rows = [row for batch in reader.read(reader.begin(), reader.end()) for row in batch.to_pylist()]
    assert [json.loads(row["body"])[1]["page"] for row in rows] == pages
    assert {row["destination"] for row in rows} == {"visited"}


# ── In a page ─────────────────────────────────────────────────────────────────────────────────────

(SHOWN,) = re.findall(r"^```html\n(.*?)^```$", (PACKAGE / "README.md").read_text(), re.M | re.S)

SABC = """
(async () => {
  const { SabcClient } = await import("./twisted-msgproto/index.js");
  const client = await SabcClient.connect("URL", {
    clientId: "page",
    onRequest: ({ text }) => `${text} is done`,
  });
  const texts = [(await client.request("Grüße")).text, (await client.request("push")).text];
  const bytes = (await client.request(Uint8Array.of(255, 0, 254))).body;
  await client.close();
  return JSON.stringify([...texts, [...bytes], client.state]);
})()
"""

STREAMS = """
(async () => {
  const client = await import("./twisted-msgproto/index.js");
  const { bounded, files, paused, working } = await import("./programs.mjs");
  const held = [];
  await files(client, "UMQ");
  held.push("files in pieces");
  await files(client, "UMQ", { WebSocket });
  held.push("files on a WebSocket");
  await paused(client, "UMQ");
  held.push("paused");
  await bounded(client, "UMQ", WebSocket);
  held.push("bounded");
  await working(client, "SABC");
  held.push("working");
  return held.join(", ");
})().catch((error) => `${error.name}: ${error.message}`)
"""

RPC = """
(async () => {
  const { umq, UmqClient } = await import("./twisted-msgproto/index.js");
  const client = await UmqClient.connect("URL", {
    login: { user: "me", password: "secret" },
    methods: { title: () => document.title },
    onCall: ({ payload }) => `${payload} It is sunny.`,
  });
  const said = [location.protocol, isSecureContext, await client.remote.greet("Ünï")];
  said.push(await client.remote.buy("bread").catch((error) => error.message));
  said.push(await client.remote.ask("The weather?"), await client.remote.title());
  const callback = client.registerCallback(({ payload }) => `${payload} is done`);
  said.push(...(await client.remote.work(callback)));
  const large = await client.call('["echo", "bytes"]', { attachments: [new Uint8Array(300_000)] });
  said.push(large.attachments[0].length);
  for await (const { payload } of await client.subscribe((id) => JSON.stringify(["ticks", id]))) {
    said.push(payload);
    if (payload === "tick 2") break;
  }
  await client.close();
  return [...said, client.state];
})().catch((error) => `${error.name}: ${error.message}`)
"""

WRONG = """
(async () => {
  const { UmqClient } = await import("./twisted-msgproto/index.js");
  const said = [];
  for (const url of URLS)
    for (const options of [{}, { WebSocket }])
      said.push((await UmqClient.connect(url, options).catch((error) => error)).name);
  for (const options of [{}, { WebSocket }]) {
    const client = new UmqClient("UMQ", options);
    const started = client.start().catch((error) => error);
    await client.close();
    said.push((await started).name);
  }
  return said;
})()
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
    }

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A web server for the files of a directory, which has the package's sources in it."""
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "twisted-msgproto").symlink_to(PACKAGE / "src")
    (directory / "programs.mjs").symlink_to(HERE / "programs.mjs")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@needs_browser
@pytest.mark.parametrize("protocol", ["http:", "https:"])
def test_a_page_and_a_server_call_each_other(
    launch: Launcher, site: ThreadingHTTPServer, tmp_path: Path, protocol: str
) -> None:
    """UM-09 … UM-16 from a real page, by ``ws:``, and by ``wss:`` from a page that came by TLS."""
    secure = protocol == "https:"
    pair = Authority(tmp_path).server()
    origin = f"{protocol}//127.0.0.1:{site.server_port}"
    words = ["--tls", str(pair.cert), str(pair.key), origin]
    server = launch.command([sys.executable, str(HERE / "server.py"), *words])
    url = as_secure(server.address("secure")) if secure else as_websocket(server.address("umq"))
    (tmp_path / "site" / "index.html").write_text("<!doctype html><title>Ours</title><p>A page")
    if secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        site.socket = context.wrap_socket(site.socket, server_side=True)
    debugging = start_browser(launch, trusted=pair.cert)

    async def visit() -> None:
        async with connect(debugging, compression=None, max_size=None, origin=None) as socket:
            page = Page(socket)
            await page.open(f"{origin}/")
            await page.shown("A page")
            said = await page.value(RPC.replace("URL", url))
            assert said[:2] == [protocol, True], said  # a page of this machine is trusted
            answers = ["Hello, Ünï!", "no bread left", "The weather? It is sunny.", "Ours!"]
            works = ["one is done", "two is done", 300_000]
            assert said[2:] == [*answers, *works, "tick 1", "tick 2", "closed"]
            await page.open("about:blank")
            assert await page.value(FOREIGN.replace("URL", url)) == "kept out"

    asyncio.run(asyncio.wait_for(visit(), 150))


@needs_browser
def test_the_page_of_the_readme_and_slow_programs_in_it(
    launch: Launcher, site: ThreadingHTTPServer, tmp_path: Path
) -> None:
    """FC-08, SA-25, UM-19: both protocols from a page, and streams that are taken slowly.

    A WebSocketStream is paused; a WebSocket cannot be, and what is too slow on it is told so.
    """
    origin = f"http://127.0.0.1:{site.server_port}"
    pair = Authority(tmp_path).server()
    words = ["--tls", str(pair.cert), str(pair.key), origin]
    server = launch.command([sys.executable, str(HERE / "server.py"), *words])
    secure = as_secure(server.address("secure"))
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
            wrong = WRONG.replace("URLS", json.dumps([secure, f"{sabc}/"]))
            said = await page.value(wrong.replace("UMQ", f"{umq}/"))
            assert said == ["ConnectionClosed"] * 6, said
            held = await page.value(STREAMS.replace("UMQ", f"{umq}/").replace("SABC", f"{sabc}/"))
            assert held == "files in pieces, files on a WebSocket, paused, bounded, working"

    asyncio.run(asyncio.wait_for(visit(), 150))
