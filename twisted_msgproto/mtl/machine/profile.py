"""Profiles: what a server does with content (``MT-25``, ``MT-26``).  A public extension point.

Subclass :class:`Profile`, say what it has (its name, its resources, which way content may go, which
confirmation it supports) and what becomes of content::

    class Newest(Profile):
        name = "newest"                      # lower case
        confirmations = ("none",)

        def accept(self, flow, resource, contents): …      # contents of a writer are safe
        def ready(self, flow): …                           # a reader has room: flow.send(…)

and give an instance to the server.  A profile is a sans-I/O machine too: it is called by the server
and sends with :meth:`.ReadingFlow.send` to readers that have summoned the resource and whose
``room`` is above 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from .flows import Flow, ReadingFlow, Stored, WritingFlow


class Profile:
    """What a server does with content; the base accepts all and delivers nothing.

    What a method raises is logged and counted, and concerns the flow that it was called for alone:
    contents that it was asked about are rejected, a Confirm is withheld until :meth:`congested` can
    say, a reader's flow ends (``MT-13``, ``MT-20``).

    Attributes:
        name: in lower case, as clients select it in any case.
        confirmations: the values of ``confirm`` that it supports; another gets 501.
        reads: readers are allowed; else Connection.Reader gets 403.
        writes: writers are allowed; else Connection.Writer gets 403.
        stored: the contents of writers go to the sink (and the hooks) first; else they are accepted
            as they arrive.
        bounded: ask :meth:`has_room` for each content.
        enveloped: ask :meth:`envelopes` for the contents of each read.
        only_resource: its one resource, if it has exactly one: then names may be empty.
        counters: plain integers by name.
        release: call this when writers whose Confirm was withheld may have it now.
        wake: call this when something was sent to readers, or released, and the server had not
            called the profile: what is to be sent is sent soon.
        end_flow: call this with a flow and an error to end that flow.
    """

    name: ClassVar[str] = ""
    confirmations: ClassVar[Sequence[str]] = ("none", "full")
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    stored: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    enveloped: ClassVar[bool] = False
    only_resource: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.release: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None
        self.end_flow: Callable[[Flow, Exception], None] = lambda flow, error: None

    def knows(self, virtual_host: str, resource: str) -> bool:
        """There is such a resource; else a lease for it gets 404 (``MT-10``)."""
        return self.only_resource is None or resource == self.only_resource

    def has_room(self, flow: WritingFlow, resource: str, octets: int) -> bool:
        """One more content may come; else it is refused.  Only asked where ``bounded``."""
        return True

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        """Called when contents of ``flow`` are safe (or the profile stores none): do with them what
        you do.

        Return False to refuse them: they are rejected, and so they are when this raises.
        """
        return None

    def envelopes(
        self, flow: WritingFlow, resources: Sequence[str], properties: Sequence[bytes]
    ) -> list[bytes | None] | None:
        """Return what the log keeps beside each content, for a broker's queues; None: nothing.

        Called with the contents of one read, before they go to the sink.  Only asked where
        ``enveloped``.
        """
        return None

    def congested(self, flow: WritingFlow) -> bool:
        """The flow's writer should wait: its Confirm is withheld until ``release`` (``MT-27``)."""
        return False

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        """Called when ``flow`` wants a resource that it has not summoned yet; False answers 400."""
        return True

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        """``flow`` wants no more of the resource, or is at its end."""

    def ready(self, flow: ReadingFlow) -> None:
        """Called when ``flow`` may have space: it has summoned, confirmed, or its socket accepts
        more.
        """

    def confirmed(self, flow: ReadingFlow, contents: list[tuple[str, Stored]]) -> None:
        """The reader has these contents safe."""

    def rejected(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], recycle: bool
    ) -> None:
        """Do something about contents that the reader refuses."""

    def gone(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], orderly: bool = False
    ) -> None:
        """Called when the reader is at its end, with what it has not confirmed.

        ``orderly``: the server ends, or the reader had dismissed all that it had summoned.  By
        default these contents are ``rejected`` with ``recycle`` and its resources dismissed.
        """
        self.rejected(flow, contents, True)
        for resource in flow.summoned:
            self.dismiss(flow, resource)

    def snapshot(self) -> dict[str, object]:
        """Return the profile's figures as plain values."""
        return dict(self.counters)


def by_name(profiles: Iterable[Profile]) -> dict[str, Profile]:
    """The profiles by their names; ValueError for a name that is none or stands twice."""
    found: dict[str, Profile] = {}
    for profile in profiles:
        if not profile.name or profile.name != profile.name.lower() or profile.name in found:
            raise ValueError(f"a profile's name is in lower case and unique: {profile.name!r}")
        found[profile.name] = profile
    return found
