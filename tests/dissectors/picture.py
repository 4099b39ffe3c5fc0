"""Draws docs/dissectors.svg from what tshark shows: ``python -m tests.dissectors.picture``."""

from __future__ import annotations

import subprocess
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.dissectors.recordings import reference_umq
from tests.tools.byte_streams import Capture
from tests.tools.processes import PROJECT

PICTURE = PROJECT / "docs" / "dissectors.svg"
SCRIPT = PROJECT / "dissectors" / "umq.lua"
ROWS = slice(2, 22)
CHOSEN = "Attachment of 7 bytes"
COLUMNS = 'gui.column.format:"Src","%us","Info","%i"'
LINE, LEFT, WIDTH = 21, 16, 760

STYLE = """
text { font: 13px ui-monospace, monospace; fill: #1b2130 }
.soft { fill: #5d6678 } .head { font-weight: 600 }
.chosen { fill: #dbe4ff } .paper { fill: #ffffff; stroke: #dfe3ea } .rule { stroke: #dfe3ea }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ebf2 } .soft { fill: #9aa4b8 }
  .chosen { fill: #2b3a66 } .paper { fill: #1b202a; stroke: #2e3543 } .rule { stroke: #2e3543 }
}
"""


def tshark(*options: str) -> list[str]:
    """What tshark says of the session that the reference implementation's peers had."""
    capture = Capture()
    connection = capture.connection(5048)
    connection.upgrade("umq")
    for side, message in reference_umq():
        connection.messages(side, [message])
    with TemporaryDirectory() as directory:
        path = capture.write(Path(directory) / "umq.pcap")
        command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-Y", "umq", *options]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in told.stdout.splitlines() if line.strip()]


def rows() -> list[tuple[str, str]]:
    """Who speaks, and what the column Info says, packet by packet."""
    found = []
    for line in tshark("-o", COLUMNS)[ROWS]:
        host, _, info = line.strip().partition(" ")
        found.append(("client" if host.endswith(".1") else "server", info.strip()))
    return found


def details() -> list[str]:
    lines = tshark("-O", "umq", "-Y", "umq.attachment and tcp.srcport == 5048")
    first = next(at for at, line in enumerate(lines) if line.startswith("UMQ"))
    return lines[first : first + 3]


def drawn() -> str:
    packets, tree = rows(), details()
    height = LINE * (len(packets) + len(tree) + 3) + 8
    place = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {place}>', f"<style>{STYLE}</style>"]
    out.append(f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"/>')
    y = LINE

    def text(x: int, words: str, kind: str = "") -> None:
        preserved = escape(words).replace(" ", "\u00a0")
        out.append(f'<text x="{x}" y="{y}" class="{kind}">{preserved}</text>')

    for x, words in ((LEFT, "From"), (LEFT + 90, "Protocol"), (LEFT + 180, "Info")):
        text(x, words, "head")
    for side, info in packets:
        y += LINE
        if info == CHOSEN:
            box = f'width="{WIDTH - 2}" height="{LINE}"'
            out.append(f'<rect class="chosen" x="1" y="{y - 15}" {box}/>')
        text(LEFT, side, "soft")
        text(LEFT + 90, "UMQ")
        text(LEFT + 180, info)
    y += LINE
    out.append(f'<path class="rule" d="M0 {y - 6}H{WIDTH}"/>')
    for line in tree:
        y += LINE
        text(LEFT, line)
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn())
