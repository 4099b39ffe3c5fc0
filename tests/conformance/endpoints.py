"""Processes with every endpoint that speaks TLS, and what a scanner says of them.

``python -m tests.conformance.endpoints --write docs/how-it-is-tested.md`` scans them with sslyze
and puts the table into that page; exit status 1 if anything but the certificate is found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.__main__ import written
from tests.tools.certificates import Authority
from tests.tools.processes import Launcher
from tests.tools.sslyze import CERTIFICATE, PROFILE, installed, scanned
from twisted_msgproto.queue import QueueWriter

BEGIN: Final = "<!-- the table of tests.conformance.endpoints -->"
END: Final = "<!-- the end of tests.conformance.endpoints -->"

LOOPBACK: Final = "interface=127.0.0.1"

ENDPOINTS: Final = {
    "lumberjack": "mtls:0:{pair}:verify=none",
    "micromsg2": "ssl:0:{pair}",
    "sabc": "tls:{directory}:0",
    "umq": "ssl:0:{pair}",
    "status": "ssl:0:{pair}",
    "flight": "grpc+tls://127.0.0.1:0",
}
"""Every server with TLS → its endpoint string; together they have every kind of string."""

GATEWAY: Final = """
[queue]
directory = "queue"
[status]
endpoint = "{status}"
[lumberjack]
endpoint = "{lumberjack}"
[micromsg2]
endpoint = "{micromsg2}"
[sabc]
endpoint = "{sabc}"
[umq]
endpoint = "{umq}"
"""


def serving(launch: Launcher) -> dict[str, int]:
    """Start a gateway and a Flight server; the port of each endpoint."""
    here = launch.directory
    server = Authority(here).server()
    (here / "pems").mkdir()
    (here / "pems" / "localhost.pem").write_bytes(
        server.key.read_bytes() + server.cert.read_bytes()
    )
    pair = f"privateKey={server.key}:certKey={server.cert}"
    strings = {
        name: f"{text.format(pair=pair, directory=here / 'pems')}:{LOOPBACK}"
        for name, text in ENDPOINTS.items()
    }
    (here / "gateway.toml").write_text(GATEWAY.format(**strings))
    QueueWriter(here / "queue").close()
    command = ["msgproto", "--config", "gateway.toml"]
    gateway = launch(*command, module="twisted")
    flight = launch(
        "flight",
        "--queue=queue",
        f"--listen={ENDPOINTS['flight']}",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
    )
    return {name: (flight if name == "flight" else gateway).port(name) for name in ENDPOINTS}


def main(arguments: Sequence[str]) -> int:
    """Scan every endpoint; exit status 1 if there is a finding."""
    parsing = argparse.ArgumentParser(description=__doc__)
    parsing.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    options = parsing.parse_args(arguments)
    if not installed():
        raise SystemExit("sslyze is missing: python -m tests.tools.sslyze brings it")
    with tempfile.TemporaryDirectory() as directory:
        launch = Launcher(Path(directory))
        try:
            ports = serving(launch)
            places = {name: f"localhost:{port}" for name, port in ports.items()}
            found = scanned(list(places.values()), Path(directory))
        finally:
            launch.end_all()
    rows, bad = [], False
    for name, string in ENDPOINTS.items():
        kinds = found[places[name]]
        others = [
            f"{kind}: {text}" for kind, text in kinds.items() if not kind.startswith(CERTIFICATE)
        ]
        bad = bad or bool(others)
        kind = string.partition(":")[0]
        rows.append(
            f"| {name} | `{kind}:` | {'; '.join(others) or 'nothing but the certificate'} |"
        )
    text = "\n".join([f"| server | endpoint | findings ({PROFILE}) |", "|---|---|---|", *rows])
    print(text)
    if options.write:
        page = written(options.write.read_text(), text, BEGIN, END)
        options.write.write_text(page)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
