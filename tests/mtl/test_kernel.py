"""What waits in the kernel of all connections together has a bound, which they share."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator

import pytest

from tests.mtl.test_door import accepted, disconnected
from tests.mtl.test_unfinished import needs_linux
from twisted_msgproto.mtl.zeromq.bounded import KERNEL_OCTETS
from twisted_msgproto.mtl.zeromq.descriptors import waiting_in
from twisted_msgproto.mtl.zeromq.door import Door
from twisted_msgproto.mtl.zeromq.kernel import (
    LEAST_OCTETS,
    SHARED_OCTETS,
    KernelShares,
    Peer,
    ask_kernel,
)


class Given:
    """What each connection was given last; nothing was asked twice."""

    def __init__(self) -> None:
        self.octets: dict[int, int] = {}
        self.fails = False

    def __call__(self, descriptor: int, peer: Peer, octets: int) -> bool:
        assert peer == ("192.0.2.1", descriptor)
        assert self.octets.get(descriptor, KERNEL_OCTETS) != octets
        if not self.fails:
            self.octets[descriptor] = octets
        return not self.fails

    def come(self, shares: KernelShares, descriptor: int) -> None:
        shares.add(descriptor, ("192.0.2.1", descriptor))
        self.octets.setdefault(descriptor, KERNEL_OCTETS)

    def leave(self, shares: KernelShares, descriptor: int) -> None:
        shares.remove(descriptor)
        del self.octets[descriptor]


def test_what_many_leave_together_stays_about_the_same__NB_02() -> None:
    """NB-02: libzmq reads it all before it notices who was cut off, and the first of a thousand
    kept what they had been given when they were few.
    """
    given = Given()
    shares = KernelShares(given)
    for number in range(1, 3001):
        given.come(shares, number)
        together = sum(given.octets.values())
        assert together <= max(SHARED_OCTETS, number * LEAST_OCTETS)
        assert min(given.octets.values()) >= min(KERNEL_OCTETS, SHARED_OCTETS // (2 * number))
        if number & (number - 1) == 0:
            assert set(given.octets.values()) <= {shares.share, 2 * shares.share}
    assert set(given.octets.values()) == {LEAST_OCTETS}


def test_who_stays_gets_the_shares_of_those_who_leave__NB_02() -> None:
    given = Given()
    shares = KernelShares(given)
    for number in range(3000):
        given.come(shares, number)
    for number in range(2990):
        given.leave(shares, number)
        left = 2999 - number
        assert min(given.octets.values()) * 4 >= min(KERNEL_OCTETS, SHARED_OCTETS // left)
    shares.remove(0)
    assert set(given.octets.values()) == {KERNEL_OCTETS}


def test_each_has_a_whole_share_while_there_are_few__NB_02() -> None:
    few = SHARED_OCTETS // KERNEL_OCTETS
    given = Given()
    shares = KernelShares(given)
    assert shares.share == KERNEL_OCTETS
    for number in range(few):
        given.come(shares, number)
    assert set(given.octets.values()) == {KERNEL_OCTETS}
    given.come(shares, few)
    assert given.octets[few] == KERNEL_OCTETS // 2
    assert sorted(given.octets.values()) == [KERNEL_OCTETS // 2] * 3 + [KERNEL_OCTETS] * (few - 2)


def test_who_could_not_be_asked_is_asked_again__NB_02() -> None:
    """For a moment there may be no descriptor for it."""
    given = Given()
    shares = KernelShares(given)
    few = SHARED_OCTETS // KERNEL_OCTETS
    given.fails = True
    for number in range(few + 1):
        given.come(shares, number)
    assert set(given.octets.values()) == {KERNEL_OCTETS}
    given.fails = False
    for number in range(few + 1, 2 * few):
        given.come(shares, number)
    assert set(given.octets.values()) == {KERNEL_OCTETS // 2}


@contextlib.contextmanager
def connections(number: int, address: str = "127.0.0.1") -> Iterator[tuple[str, list[int]]]:
    """An endpoint, and the descriptors of connections that it has accepted."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((address, 0)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_OCTETS)
        far = []
        for _ in range(number):
            stack.enter_context(socket.create_connection(listener.getsockname()))
            far.append(stack.enter_context(listener.accept()[0]).fileno())
        yield f"tcp://{address}:{listener.getsockname()[1]}", far


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection whose listener asked for as much as ours do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_OCTETS)
        with socket.create_connection(listener.getsockname()) as near, listener.accept()[0] as far:
            yield near, far


def peer_of(descriptor: int) -> Peer:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        host, port = one.getpeername()
        return host, port


def left_by(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def system_gives(asked: int) -> int:
    """What the system gives whoever asks for so much: Linux twice of it, up to its own limit."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, asked)
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def test_the_connections_of_a_server_share_what_waits__NB_02(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NB-02, MT-29: those that stand have less as others come, and more when these leave."""
    # What a share of eight is, every Linux allows.
    monkeypatch.setattr("twisted_msgproto.mtl.zeromq.kernel.SHARED_OCTETS", 512 << 10)
    door = Door(100, 0, pytest.fail)
    with connections(8) as (endpoint, far):
        door.happened([accepted(one, endpoint) for one in far])
        assert list(map(left_by, far)) == [system_gives(64 << 10)] * 8
        door.happened([disconnected(one) for one in far[:-2]])
        assert list(map(left_by, far[-2:])) == [system_gives(256 << 10)] * 2
        assert system_gives(64 << 10) < system_gives(256 << 10)


def test_a_descriptor_that_is_another_ones_by_now_is_left_alone() -> None:
    """MT-29: libzmq may have closed it, and somebody else of that host may have it."""
    with connections(2) as (_, (one, other)):
        before, peer = left_by(one), peer_of(one)
        assert ask_kernel(one, peer_of(other), LEAST_OCTETS)
        assert left_by(one) == before
        assert ask_kernel(one, peer, LEAST_OCTETS)
        assert left_by(one) == system_gives(LEAST_OCTETS) < before == left_by(other)
        gone = os.dup(one)
        os.close(gone)
        assert not ask_kernel(gone, peer, LEAST_OCTETS)


def test_who_gets_more_may_really_leave_more__NB_02() -> None:
    """Linux keeps a small window after the buffer has grown, unless it is told."""
    with pair() as (near, far):
        ask_kernel(far.fileno(), peer_of(far.fileno()), LEAST_OCTETS)
        near.setblocking(False)
        far.setblocking(False)
        read = 0
        while read < 16 * LEAST_OCTETS:
            readable, writable, _ = select.select([far], [near], [], 20)
            assert readable or writable
            if readable:
                read += len(far.recv(KERNEL_OCTETS))
            with contextlib.suppress(BlockingIOError):
                near.send(bytes(4 * LEAST_OCTETS))
        assert ask_kernel(far.fileno(), peer_of(far.fileno()), KERNEL_OCTETS)
        deadline, much = time.monotonic() + 20, system_gives(KERNEL_OCTETS) // 4
        while (waiting_in(far.fileno()) or 0) < much:
            assert time.monotonic() < deadline
            with contextlib.suppress(BlockingIOError):
                near.send(bytes(LEAST_OCTETS))
            select.select([], [near], [], 0.05)


@needs_linux
def test_a_window_grows_with_every_share__NB_02() -> None:
    """A share doubles, as a rule, and Linux gives twice of what it is asked for."""
    with pair() as (_, far):
        ask_kernel(far.fileno(), peer_of(far.fileno()), LEAST_OCTETS)
        for octets in (2 * LEAST_OCTETS, 4 * LEAST_OCTETS):
            assert ask_kernel(far.fileno(), peer_of(far.fileno()), octets)
            assert far.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP) == 2 * octets


@needs_linux
def test_a_segment_of_this_machine_fits_twice_into_the_least_share__NB_02() -> None:
    """It has 64 KiB.  In half of that each one is sent again after 0.2 s: 0.3 MB a second."""
    assert system_gives(LEAST_OCTETS) >= 2 * (64 << 10)
