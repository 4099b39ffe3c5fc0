"""Make the data of one release, with that release's own code: ``python make.py NAME``.

The directory NAME is made anew from ``git archive`` of the release's commit: its package, not the
working tree's, writes the queue and the table, and its processes run the broker.  What they wrote
is described in ``expected.json``, by what was acknowledged and not by what is read back.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RELEASES = tomllib.loads((HERE / "releases.toml").read_text())
INSIDE = "MSGPROTO_UPGRADES_INSIDE"

DAY = 86_400_000_000
FIRST = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC, in microseconds since 1970
SEGMENT_OCTETS = 4096
"""So small that a few messages make several segments, and that the oldest is trimmed."""

TOML = """\
# Options of every kind that a file may have had at this release.
[queue]
directory = "queue"
max-bytes = 10737418240
commit-delay = 0.001

[limits]
handshake = 5
connections = 7

[lumberjack]
endpoint = ["tcp:5044:interface=127.0.0.1", "unix:lumberjack.sock"]
limit = { connections = 8, window = 4096 }

[micromsg2]
endpoint = ["tcp:5045:interface=127.0.0.1"]

[sabc]
endpoint = ["tcp:5046:interface=127.0.0.1"]

[umq]
endpoint = ["tcp:5048:interface=127.0.0.1"]
origin = ["https://example.org"]

[mtl]
endpoint = ["tcp://127.0.0.1:5049"]
one-socket = true
"""

BROKER_TOML = """\
[queue]
directory = "broker-queue"

[micromsg2]
endpoint = ["tcp:0:interface=127.0.0.1"]
broker-queue = ["jobs"]
broker-namespace = "shop"

[mtl]
endpoint = ["tcp://127.0.0.1:*"]
one-socket = true
"""


def main(name: str) -> None:
    """Take the release's package out of git and run this file over it."""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(
            ["git", "archive", RELEASES[name]["commit"], "twisted_msgproto", "twisted"],
            cwd=HERE.parents[2],
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        subprocess.run(["tar", "x", "-C", scratch], input=archive, check=True)
        environment = {**os.environ, INSIDE: "1", "PYTHONPATH": scratch}
        subprocess.run([sys.executable, __file__, name], cwd=target, env=environment, check=True)


def inside(name: str) -> None:
    """Write everything into the current directory; ``twisted_msgproto`` is the release's."""
    socket.gethostname = lambda: "a-machine"  # nobody's machine stands in the data
    expected: dict[str, Any] = {"queue": queue_and_table()}
    Path("gateway.toml").write_text(TOML)
    run("check", "gateway.toml", *RELEASES[name].get("check", []))
    if RELEASES[name]["broker"]:
        expected["broker"] = broker()
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for left in (*Path().rglob("lock"), *Path().rglob("*.lock"), *Path().rglob("control")):
        left.unlink()


# -- a queue that was written, landed, trimmed and written on --------------------------------------


def queue_and_table() -> dict[str, Any]:
    """Make ``queue`` and ``table``; the rows of the first two writers are landed, others wait."""
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.table.actions import Run
    from twisted_msgproto.table.landing import TABLE_SCHEMA, Range, Target, land_ranges
    from twisted_msgproto.table.log import Table
    from twisted_msgproto.table.starting import consumer_name

    run_of_this = Run("5eed", "a-machine", 17)
    table = Table.create("table", TABLE_SCHEMA, run=run_of_this)
    rows: list[dict[str, Any]] = []
    for writer in range(3):
        rows += written(writer, len(rows))
        if writer == 2:
            break  # the bridge that reads these is today's
        reader = QueueReader("queue")
        gateway, before = reader.queue_id, table.landed().get(reader.queue_id)
        place = reader.place(reader.end())
        wanted = Range("queue", gateway, before.offset if before else 0, place.offset, place)
        landed = land_ranges(Target(table.location), [wanted], lambda range, reader=reader: reader)
        table.commit(landed.files, {gateway: place}, before={gateway: before}, run=run_of_this)
        table.sync()
        consumer = consumer_name(table.table_id)
        reader.register(consumer)
        reader.commit(consumer, place.offset, place)
    reader = QueueReader("queue")
    return {
        "id": reader.queue_id,
        "rows": rows,
        "landed": table.landed()[gateway].offset,
        "begin": reader.begin(),
        "table_version": table.version,
    }


def written(writer: int, offset: int) -> list[dict[str, Any]]:
    """One start of a writer: batches of several protocols; each row as it was acknowledged."""
    from twisted_msgproto import MessageBatch
    from twisted_msgproto.queue import QueueWriter

    made = QueueWriter("queue", segment_bytes=SEGMENT_OCTETS)
    rows: list[dict[str, Any]] = []
    numbers = count(offset)
    for number in range(4):
        at = FIRST + writer * DAY + number
        bodies = [b'{"n": %d, "text": "%s"}' % (next(numbers), b"x" * 300) for _ in range(5)]
        batches = [
            MessageBatch(
                "lumberjack", "json", at, peer="tcp:192.0.2.1:5044", session="lumberjack-1",
                client_id="CN=shipper", count=5, message_id=list(range(1, 6)), body=bodies,
            ),
            MessageBatch(
                "micromsg2", "message", at, count=2, destination=["jobs", "topic/a"],
                fields=[{"k": "v", "ü": "ß"}, None], body=[b"\xff\x00 no text", b""],
                truncated=[True, False],
            ),
            MessageBatch(
                "umq", "call", at, count=1, message_id=["seven"], destination=["save"],
                body=[b"[1,2]"], attachments=[[b"first", b"\x00second"]],
            ),
        ]  # fmt: skip
        next(numbers), next(numbers), next(numbers)
        for batch in batches:
            submitted(made.submit, batch)
            rows += [told(len(rows) + offset + n, row) for n, row in enumerate(batch)]
    made.close()
    return rows


def submitted(submit: Callable[..., None], batch: object) -> None:
    """Wait until the batch is acknowledged, as a server would."""
    done = threading.Event()
    errors: list[object] = []

    def called(error: BaseException | None, *first: int | None) -> None:
        errors.append(error)
        done.set()

    submit(batch, called)
    assert done.wait(60) and errors == [None], errors


def told(offset: int, row: Any) -> dict[str, Any]:
    """A row in JSON: octets are base64."""
    return {
        "offset": offset,
        "protocol": row.protocol,
        "kind": row.kind,
        "received_at": row.received_at,
        "peer": row.peer,
        "session": row.session,
        "client_id": row.client_id,
        "message_id": None if row.message_id is None else str(row.message_id),
        "destination": row.destination,
        "fields": None if row.fields is None else dict(row.fields),
        "body": base64.b64encode(row.body).decode(),
        "attachments": row.attachments
        and [base64.b64encode(attached).decode() for attached in row.attachments],
        "truncated": row.truncated,
    }


# -- a gateway that is killed with messages in its queues ------------------------------------------


def run(*words: str, said: str = "") -> str:
    """Run one ``msgproto`` command of the release to its end; what it printed."""
    command = [sys.executable, "-m", "twisted_msgproto", *words]
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def broker() -> dict[str, Any]:
    """Make ``broker-queue``: queues of MicroMsg2 and MTL, partly consumed, one of them purged."""
    Path("broker.toml").write_text(BROKER_TOML)
    command = [sys.executable, "-m", "twisted_msgproto", "gateway", "--config", "broker.toml"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as gateway:
        try:
            places = dict(listening(gateway) for _ in range(2))
            micromsg2 = ("micromsg2", places["micromsg2"])
            mtl = ("mtl", places["mtl"])
            lines = [f"job {number}" for number in range(40)]
            for part in (lines[:25], lines[25:]):
                run(
                    "send",
                    *micromsg2,
                    "--destination",
                    "jobs",
                    "--property",
                    "kind=a",
                    said="\n".join(part) + "\n",
                )
            bills = [f"bill {number}" for number in range(12)]
            run("send", *mtl, "--destination", "queue/bills", said="\n".join(bills) + "\n")
            read = run("recv", *micromsg2, "--destination", "jobs", "--count", "15").splitlines()
            jobs = [line.partition("\t")[2] for line in read]
            run("recv", *mtl, "--destination", "queue/bills", "--until-empty")
            more = [f"late bill {number}" for number in range(5)]
            run("send", *mtl, "--destination", "queue/bills", said="\n".join(more) + "\n")
            time.sleep(3)  # what is settled is written once a second
            shown = json.loads(run("broker", "ls", "broker-queue", "--json"))["queues"]
        finally:
            gateway.send_signal(signal.SIGKILL)
    waiting = {"jobs": lines[len(jobs) :], "bills": more}
    assert jobs == lines[: len(jobs)], jobs
    assert {one["name"]: one["waiting"] for one in shown} == {
        name: len(bodies) for name, bodies in waiting.items()
    }, shown
    return {
        "queues": {
            one["name"]: {"space": one["space"], "bodies": waiting[one["name"]]} for one in shown
        },
        "rows": len(lines) + len(bills) + len(more),
    }


def listening(gateway: subprocess.Popen[str]) -> tuple[str, str]:
    """The next server that says where it listens."""
    assert gateway.stdout is not None
    for line in gateway.stdout:
        print(line, end="")
        if " listening on " in line:
            head, _, place = line.rpartition(" listening on ")
            return head.split()[-1], place.split()[0]
    raise AssertionError("the gateway ended")


if __name__ == "__main__":
    (inside if os.environ.get(INSIDE) else main)(sys.argv[1])
