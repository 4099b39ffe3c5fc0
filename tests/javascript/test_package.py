"""The package as its users get it: packed, installed elsewhere without a network, typed, and read
about.

The machines of ``clients/js`` do what ours do: recordings of ours are their tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.javascript import recorded
from tests.tools.javascript import PACKAGE, installed, node, npm
from tests.tools.processes import Launcher
from twisted_msgproto import __version__

HERE = Path(__file__).parent

BLOCK = re.compile(r"^```js\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall((PACKAGE / "README.md").read_text())

TYPED = """
import { SabcClient, UmqClient, umq } from "twisted-msgproto";
import { type Update } from "twisted-msgproto/umq";
import { Message } from "twisted-msgproto/sabc";

export async function talk(url: string): Promise<string[]> {
  const client: UmqClient = await UmqClient.connect(url, {
    limits: { "call-seconds": 5 },
    onCall: ({ payload }) => new umq.Reply(payload, [new Uint8Array(1)]),
    onState: (state) => { if (state === "down") console.log(state); },
    onHookError: (error: unknown) => console.error(error),
    signal: AbortSignal.timeout(5000),
  });
  const answer = await client.call("x", { attachments: [new Uint8Array(1)], timeout: 5 });
  for (const one of answer.attachments) if (one instanceof Uint8Array) one.fill(0);
  const large = { attachments: umq.pieces(new Blob(["x"])), streamed: true };
  const { stream } = await client.call("x", large);
  for await (const piece of stream ?? []) if (piece instanceof Uint8Array) piece.fill(0);
  const seen: string[] = [];
  const hook = async (update: Update) => { seen.push(update.payload); };
  const ticks = await client.subscribe((id) => id, hook);
  for await (const update of ticks) seen.push(update.payload);
  const why: "closed" | "unsubscribed" | "refused" | "slow" | "lost" = await ticks.ended;
  const onRequest = (one: Message) => one.body;
  const onMessage = async (one: Message) => { seen.push(one.text); };
  const where = new URL(url);
  const session = await SabcClient.connect(where, { clientId: "me", onRequest, onMessage });
  if (session.session?.paused || client.session?.paused) seen.push("slow");
  const message: Message = await session.request("x", { headers: { a: "b" } });
  return [...seen, why, message.text];
}

// @ts-expect-error a client has no such method
new UmqClient("ws://x/").whatever();
// @ts-expect-error there is no such limit
new UmqClient("ws://x/", { limits: { nonsense: 1 } });
// @ts-expect-error an attachment is no number
new UmqClient("ws://x/").call("x", { attachments: [1] });
// @ts-expect-error a client-id is needed
new SabcClient("ws://x/", {});
"""


def run(*command: str, cwd: Path) -> str:
    """Run it to its end without a network, and return what it said on stdout."""
    env = {**os.environ, "npm_config_offline": "true", "npm_config_cache": str(cwd / ".npm")}
    ended = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory in which the packed package is installed, and ``ws``."""
    web_socket = installed("ws")
    directory = tmp_path_factory.mktemp("elsewhere")
    installed("typescript")  # prepack makes the types
    said = run(npm(), "pack", str(PACKAGE), "--json", cwd=directory)
    (packed,) = json.loads(said[said.index("[\n") :])
    files = {entry["path"] for entry in packed["files"]}
    assert {"package.json", "README.md", "LICENSE", "src/index.js", "types/index.d.ts"} <= files
    assert not [name for name in files if name.startswith(("test", "node_modules"))]
    (directory / "package.json").write_text('{"private": true, "type": "module"}')
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--install-links"]
    run(npm(), "install", *quiet, f"./{packed['filename']}", str(web_socket), cwd=directory)
    assert not (directory / "node_modules" / "twisted-msgproto").is_symlink()
    return directory


@pytest.mark.slow
@pytest.mark.xdist_group("javascript")
def test_nothing_else_is_installed_with_it(elsewhere: Path) -> None:
    """FC-08: a package without dependencies."""
    found = {path.name for path in (elsewhere / "node_modules").iterdir() if path.name[0] != "."}
    assert found == {"twisted-msgproto", "ws"}


@pytest.mark.slow
@pytest.mark.xdist_group("javascript")
def test_the_pages_command_for_an_older_node_puts_ws_beside_it(tmp_path: Path) -> None:
    page = (PACKAGE.parent.parent / "docs" / "javascript.md").read_text()
    (command,) = re.findall(r"^npm (install .* ws)  ", page, re.MULTILINE)
    real = {"./clients/js": str(PACKAGE), "ws": str(installed("ws"))}
    words = [real.get(word, word) for word in command.split()]
    run(npm(), *words, "--no-audit", "--no-fund", "--ignore-scripts", cwd=tmp_path)
    modules = tmp_path / "node_modules"
    assert (modules / "ws").is_dir() and not (modules / "twisted-msgproto").is_symlink()


@pytest.mark.slow
@pytest.mark.xdist_group("javascript")
def test_its_types_are_checked_where_it_is_installed(elsewhere: Path) -> None:
    tsc = installed("typescript") / "bin" / "tsc"
    (elsewhere / "talk.ts").write_text(TYPED)
    options = [
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "nodenext",
        "--target",
        "es2022",
    ]
    run(node(), str(tsc), *options, "talk.ts", cwd=elsewhere)


@pytest.mark.slow
@pytest.mark.xdist_group("javascript")
def test_every_example_of_the_readme_runs_as_it_stands(elsewhere: Path, launch: Launcher) -> None:
    server = launch.command([sys.executable, str(HERE / "server.py")])
    umq, sabc = (server.address(name).replace("tcp:", "ws://") for name in ("umq", "sabc"))
    said = []
    for number, text in enumerate(EXAMPLES):
        for shown, real in (("ws://localhost:5048", umq), ("ws://localhost:5047", sabc)):
            text = text.replace(shown, real)
        program = elsewhere / f"example-{number}.js"
        program.write_text(text)
        said.append(run(node(), str(program), cwd=elsewhere).splitlines())
    assert said == [
        ["Hello, world!", '"here is a picture" 4', "tick 1", "tick 2", "tick 3"],
        ['"a file" 1000000'] * 3,
        ["Fine", "[ 'tick 1', 'tick 2', 'tick 3' ]", "[ 'one is done', 'two is done' ]", "good"],
        ["Hola {}", "line 1", "line 2", "line 3", ""],
        [
            "connecting ",
            "this session begins anew: ",
            "open ",
            "down because of ConnectionClosed",
            "ConnectionClosed",
            "connecting because of ConnectionClosed",
            "this session begins anew: ",
            "open ",
            "Hello, again!",
            "closed ",
        ],
    ]


def test_what_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\((src/[^)#]+)\)", (PACKAGE / "README.md").read_text())
    assert links and [name for name in links if not (PACKAGE / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.xdist_group("javascript")
def test_the_versions_are_one() -> None:
    """A release has one number: the Python package's and this one's are the same."""
    assert json.loads((PACKAGE / "package.json").read_text())["version"] == __version__
    series = ".".join(__version__.split(".")[:2])
    assert f"servers of twisted-msgproto {series}.x" in (PACKAGE / "README.md").read_text()


@pytest.mark.parametrize("name", recorded.RECORDED)
def test_a_recording_is_what_our_machines_still_do(name: str) -> None:
    """UM-01 … UM-16, SA-01 … SA-27: the clients are tested against what this package does today."""
    kept = recorded.path_of(name).read_text()
    assert kept == recorded.text_of(name), "write it anew: python -m tests.javascript.recorded"


def test_the_clients_own_tests_pass_where_they_are_copied_alone(tmp_path: Path) -> None:
    """FC-08 and the recordings: codecs, machines, and clients over sockets that are not there."""
    alone = tmp_path / "js"
    shutil.copytree(PACKAGE, alone, ignore=shutil.ignore_patterns("node_modules", "types"))
    if (PACKAGE / "node_modules").exists():
        (alone / "node_modules").symlink_to(PACKAGE / "node_modules")
    tests = sorted(map(str, (alone / "test").glob("*.test.js")))
    assert len(tests) >= 4
    ended = subprocess.run(
        [node(), "--test", *tests], cwd=alone, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "# fail 0" in ended.stdout or "fail 0" in ended.stdout, ended.stdout
    if "skipped 0" not in ended.stdout:
        installed("ws")  # all but one passed; this skips, and says what that one needs
        raise AssertionError(ended.stdout)
