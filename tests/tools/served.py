"""A queue which is served over Arrow Flight by a thread of the test."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from twisted_msgproto.queue.flight import QueueFlightServer


class Served:
    def __init__(self, queue: Path, location: str = "grpc://127.0.0.1:0", **options: Any) -> None:
        self.server = QueueFlightServer(str(queue), location, **options)
        self.location = f"{location.rpartition(':')[0]}:{self.server.port}"
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self._thread.join()
