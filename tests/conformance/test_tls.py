"""sslyze finds nothing but the certificate at any TLS endpoint (Mozilla's "intermediate")."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.tools.certificates import Authority
from tests.tools.processes import Launcher
from tests.tools.sslyze import CERTIFICATE, needs_sslyze, scanned
from twisted_msgproto.queue import QueueWriter

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


@pytest.mark.slow
@needs_sslyze
def test_sslyze_finds_nothing_but_the_certificate_at_any_endpoint(
    launch: Launcher, tmp_path: Path
) -> None:
    """What docs/how-it-is-tested.md says of each."""
    ports = serving(launch)
    found = scanned([f"localhost:{port}" for port in ports.values()], tmp_path)
    findings = {
        name: [kind for kind in found[f"localhost:{port}"] if not kind.startswith(CERTIFICATE)]
        for name, port in ports.items()
    }
    assert findings == {name: [] for name in ENDPOINTS}
