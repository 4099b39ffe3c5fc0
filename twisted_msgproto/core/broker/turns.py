"""Whose turn it is: letters are planned for the consumers of a queue before any of them is called.

Consumers have their turns one after the other, and each gets one letter in its turn while it has
room.  A letter that only consumers without room want waits for them, and so do all letters behind
it, because order matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .queues import BrokerQueue, Subscriber
from .terms import QueuedMessage

LETTER_STEPS: Final = 20

PUSH_STEPS: Final = 200
"""Calling one consumer is this many steps, however little it gets."""

SERVED_MAX: Final = 512
"""A queue delivers at most this many letters before the next queue has its turn."""

SHARED_MAX: Final = 16
"""A consumer of several queues gets at most this many letters of one before the next."""


Hands = Sequence[tuple[Subscriber, Sequence[QueuedMessage]]]
"""Say who gets what; each has at least one letter, and whoever gets the last one comes last."""

Plan = tuple[int, Hands, Sequence[QueuedMessage], int]
"""Says what becomes of the first letters: how many, who gets them, what nobody wants; and how many
steps it was to plan and will be to deliver.
"""


class ConsumerRaised(Exception):
    """A consumer has raised ``error`` when it was asked for its room, or its filter has."""

    def __init__(self, subscriber: Subscriber, error: Exception) -> None:
        super().__init__(str(error))
        self.subscriber = subscriber
        self.error = error


def planned(queue: BrokerQueue, letters: Sequence[QueuedMessage]) -> Plan:
    """Plan the next letters of a queue, as far as consumers have room; raises ConsumerRaised."""
    if queue.filters:
        return _planned_by_filters(queue, letters)
    if len(queue.takers) == 1:
        (only,) = queue.takers
        room = room_of(queue, only)
        if room < len(letters):
            letters = letters[:room]
        hand = ((only, letters),) if room else ()
        return len(letters), hand, (), PUSH_STEPS + LETTER_STEPS * (1 + len(letters))
    takers, rooms, asked = _takers(queue, len(letters))
    done = min(len(letters), sum(rooms))
    hands = list(zip(takers, deal(letters[:done], rooms), strict=True)) if done else []
    hands.sort(key=_last_place)
    return done, hands, (), asked + PUSH_STEPS * len(hands) + LETTER_STEPS * (1 + done)


def _last_place(hand: tuple[Subscriber, Sequence[QueuedMessage]]) -> int:
    return hand[1][-1].place


def _takers(queue: BrokerQueue, most: int) -> tuple[list[Subscriber], list[int], int]:
    takers, rooms, asked = [], [], 0
    for subscriber in tuple(queue.takers):
        asked += 1
        room = room_of(queue, subscriber)
        if room > 0:
            takers.append(subscriber)
            rooms.append(room)
            if len(takers) == most:
                break
    return takers, rooms, asked


def room_of(queue: BrokerQueue, subscriber: Subscriber) -> int:
    """Return how much of this queue a consumer may have now; a full one is out of turn then."""
    try:
        room = subscriber.consumer.room()
    except Exception as error:
        raise ConsumerRaised(subscriber, error) from error
    if room <= 0:
        queue.takers.pop(subscriber, None)
        return 0
    most = SERVED_MAX if len(subscriber.queues) == 1 else SHARED_MAX
    return room if room < most else most


def deal(
    letters: Sequence[QueuedMessage], rooms: Sequence[int]
) -> Sequence[Sequence[QueuedMessage]]:
    """Deal letters one by one, in turn, to as many hands as there are rooms; none gets more.

    ``rooms`` are above 0, and together not below the number of letters.
    """
    if len(rooms) == 1:
        return [letters]
    hands: list[list[QueuedMessage]] = [[] for _ in rooms]
    start = 0
    while start < len(letters):
        left = [
            (hand, room - len(hand))
            for hand, room in zip(hands, rooms, strict=True)
            if len(hand) < room
        ]
        end = start + len(left) * min(room for _, room in left)
        for number, (hand, _) in enumerate(left):
            hand += letters[start + number : end : len(left)]
        start = end
    return hands


def _planned_by_filters(queue: BrokerQueue, letters: Sequence[QueuedMessage]) -> Plan:
    hands: dict[Subscriber, list[QueuedMessage]] = {}
    rooms: dict[Subscriber, int] = {}
    turn = list(queue.takers)
    full = [subscriber for subscriber in queue.subscribers if subscriber not in queue.takers]
    unwanted: list[QueuedMessage] = []
    done, steps = 0, LETTER_STEPS
    for letter in letters:
        wanted, taker = False, None
        for subscriber in (*turn, *full):
            wants, cost = queue.subscribers[subscriber]
            if wants is not None:
                steps += 1 if cost is None else cost(letter)
                try:
                    if not wants(letter):
                        continue
                except Exception as error:
                    raise ConsumerRaised(subscriber, error) from error
            wanted = True
            if subscriber not in rooms:
                rooms[subscriber] = 0 if subscriber in full else room_of(queue, subscriber)
            if rooms[subscriber] > 0:
                taker = subscriber
                break
        if taker is not None:
            rooms[taker] -= 1
            hands.setdefault(taker, []).append(letter)
            turn.remove(taker)
            turn.append(taker)
        elif wanted:
            break
        else:
            unwanted.append(letter)
        done += 1
        steps += LETTER_STEPS
        if steps >= STEPS_MAX:
            break
    steps += PUSH_STEPS * len(hands)
    return done, sorted(hands.items(), key=_last_place), unwanted, steps


STEPS_MAX: Final = 20_000
"""Planning for filters ends after this many steps; the rest has another turn."""
