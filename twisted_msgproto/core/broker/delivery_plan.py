"""Whose turn it is: messages are planned for the consumers of a queue before any of them is called.

Consumers have their turns one after the other, and each gets one message in its turn while it has
room.  A message that only consumers without room want waits for them, and so do all messages behind
it, because order matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from .queues import BrokerQueue, Subscriber
from .terms import QueuedMessage

MESSAGE_STEPS: Final = 20

PUSH_STEPS: Final = 200
"""Calling one consumer is this many steps, however little it gets."""

SERVED_MAX: Final = 512
"""A queue delivers at most this many messages before the next queue has its turn."""

SHARED_MAX: Final = 16
"""A consumer of several queues gets at most this many messages of one before the next."""

STEPS_MAX: Final = 20_000
"""Planning for filters ends after this many steps; the rest has another turn."""


Hands = Sequence[tuple[Subscriber, Sequence[QueuedMessage]]]
"""Who gets what; each has at least one message, and whoever gets the last one comes last."""

Plan = tuple[int, Hands, Sequence[QueuedMessage], int]
"""What becomes of the first messages: how many, who gets them, what nobody wants; and how many
steps it was to plan and will be to deliver.
"""


class ConsumerRaised(Exception):
    """A consumer has raised ``error`` when it was asked for its room, or its filter has."""

    def __init__(self, subscriber: Subscriber, error: Exception) -> None:
        super().__init__(str(error))
        self.subscriber = subscriber
        self.error = error


def planned(queue: BrokerQueue, messages: Sequence[QueuedMessage]) -> Plan:
    """Plan the next messages of a queue, as far as consumers have room; raises ConsumerRaised."""
    if queue.filters:
        return _planned_by_filters(queue, messages)
    takers, rooms, asked = _takers(queue, len(messages))
    done = min(len(messages), sum(rooms))
    hands = list(zip(takers, deal(messages[:done], rooms), strict=True)) if done else []
    hands.sort(key=_last_id)
    return done, hands, (), asked + PUSH_STEPS * len(hands) + MESSAGE_STEPS * (1 + done)


def _last_id(hand: tuple[Subscriber, Sequence[QueuedMessage]]) -> int:
    return hand[1][-1].message_id


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


def room_for(queue: BrokerQueue) -> int:
    """Return how many messages consumers may have at once now; raises ConsumerRaised."""
    if queue.filters:
        return SERVED_MAX  # messages that nobody wants are set aside, whoever has room
    room = 0
    for subscriber in tuple(queue.takers):
        room += room_of(queue, subscriber)
        if room >= SERVED_MAX:
            return SERVED_MAX
    return room


def deal(
    messages: Sequence[QueuedMessage], rooms: Sequence[int]
) -> Sequence[Sequence[QueuedMessage]]:
    """Deal messages one by one, in turn, to as many hands as there are rooms; none gets more.

    ``rooms`` are above 0, and together not below the number of messages.
    """
    if len(rooms) == 1:
        return [messages]
    hands: list[list[QueuedMessage]] = [[] for _ in rooms]
    turn = deque(zip(hands, rooms, strict=True))
    for message in messages:
        hand, room = turn.popleft()
        hand.append(message)
        if len(hand) < room:
            turn.append((hand, room))
    return hands


def _planned_by_filters(queue: BrokerQueue, messages: Sequence[QueuedMessage]) -> Plan:
    hands: dict[Subscriber, list[QueuedMessage]] = {}
    rooms: dict[Subscriber, int] = {}
    turn = list(queue.takers)
    full = [subscriber for subscriber in queue.subscribers if subscriber not in queue.takers]
    unwanted: list[QueuedMessage] = []
    done, steps = 0, MESSAGE_STEPS
    for message in messages:
        wanted, taker = False, None
        for subscriber in (*turn, *full):
            wants, cost = queue.subscribers[subscriber]
            if wants is not None:
                steps += 1 if cost is None else cost(message)
                try:
                    if not wants(message):
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
            hands.setdefault(taker, []).append(message)
            turn.remove(taker)
            turn.append(taker)
        elif wanted:
            break
        else:
            unwanted.append(message)
        done += 1
        steps += MESSAGE_STEPS
        if steps >= STEPS_MAX:
            break
    steps += PUSH_STEPS * len(hands)
    return done, sorted(hands.items(), key=_last_id), unwanted, steps
