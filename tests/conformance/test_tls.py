"""sslyze finds nothing but the certificate at any TLS endpoint (Mozilla's "intermediate")."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.endpoints import ENDPOINTS, serving
from tests.tools.processes import Launcher
from tests.tools.sslyze import CERTIFICATE, needs_sslyze, scanned


@pytest.mark.slow
@needs_sslyze
def test_sslyze_finds_nothing_but_the_certificate_at_any_endpoint(
    launch: Launcher, tmp_path: Path
) -> None:
    ports = serving(launch)
    assert set(ports) == set(ENDPOINTS)
    found = scanned([f"localhost:{port}" for port in ports.values()], tmp_path)
    findings = {
        name: {
            kind: text
            for kind, text in found[f"localhost:{port}"].items()
            if not kind.startswith(CERTIFICATE)
        }
        for name, port in ports.items()
    }
    assert findings == {name: {} for name in ENDPOINTS}
