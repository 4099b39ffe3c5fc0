"""The stock profiles say what a server does with content (``MT-25``, ``MT-26``)."""

from __future__ import annotations

from typing import Final

from .machine.flows import ReadingFlow, Stored, WritingFlow
from .machine.profile import Profile
from .machine.queues import QueueProfile

TEST_RESOURCE: Final = "resource"


class IngestProfile(Profile):
    """Write-only into the sink: Confirm means that the sink has it safe (``MT-26``)."""

    name = "ingest"
    reads = False


class TestProfile(Profile):
    """One resource, never confirmed, fanned out from all writers to all readers (``MT-25``).

    Readers and writers meet within a virtual host.  A reader whose socket is full misses what comes
    meanwhile, and that is counted.
    """

    __test__ = False  # for pytest: this is no class of tests

    name = "test"
    confirmations = ("none",)
    stored = False
    only_resource = TEST_RESOURCE

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[str, dict[ReadingFlow, None]] = {}

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        for reader in self._readers.get(flow.session.virtual_host, ()):
            if reader.blocked:
                self.counters["missed"] += len(contents)
                continue
            for content in contents:
                reader.send(resource, content)
        return True

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        self._readers.setdefault(flow.session.virtual_host, {})[flow] = None
        return True

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        readers = self._readers.get(flow.session.virtual_host, {})
        readers.pop(flow, None)
        if not readers:
            self._readers.pop(flow.session.virtual_host, None)


__all__ = ["TEST_RESOURCE", "IngestProfile", "QueueProfile", "TestProfile"]
