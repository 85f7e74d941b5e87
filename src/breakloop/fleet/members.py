"""The workers as the control process knows them: what each is told, has acknowledged, has counted and lets know."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial

from breakloop.fleet.channel import Channel, open_channel
from breakloop.fleet.delivered import bundle_text
from breakloop.fleet.messages import Applied, Counted, Did, Fleet, Happened, Message, Policy
from breakloop.model.activity import Activity, AgentUse, LoopUse, add_use
from breakloop.model.events import Publish
from breakloop.model.figures import FigureTotals
from breakloop.observe.log import INTERVAL_S, log
from breakloop.policy.source import BundleSource


class Member:
    """One worker."""

    __slots__ = ("applied", "channel", "dropped", "number", "pid", "sent")

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.channel: Channel | None = None
        self.sent: tuple[Policy | None, int] = (None, 0)  # what it was told last: policy, number of workers
        self.applied = 0
        self.dropped = 0


class Members:
    """All of them. `policy` is what each has or gets as soon as there is room on its channel."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._members: list[Member] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._state: tuple[object, ...] = ()
        self._dropped = 0  # events that workers had no room for, and nobody was told of yet
        self._dropped_told_at = 0.0
        self.policy: Policy | None = None
        self.totals = FigureTotals()
        self._did = Activity()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def applied(self) -> list[int]:
        """The number of the policy that each has in force."""
        return [member.applied for member in self._members]

    def join(self, number: int, pid: int, end: socket.socket) -> None:
        """A worker has come; `end` leads to it."""
        member = Member(number, pid)
        self._members.append(member)
        self._empty.clear()
        task = asyncio.get_running_loop().create_task(self._open(member, end))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def deliver(self, source: BundleSource) -> None:
        """Tell everybody what is in force, and how its source is, if that has changed."""
        state = (source.loaded, source.rejected, source.problems)
        if state == self._state:
            return
        self._state = state
        loaded = source.current
        self.policy = Policy(
            number=self.policy.number + 1 if self.policy else 1,
            name=source.name,
            origin=source.origin,
            rejected=source.rejected,
            problems=source.problems,
            digest=loaded.digest if loaded else "",
            text=bundle_text(loaded) if loaded else None,
        )
        self._tell_all()

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Tell of events that got lost, at most once an interval; called every second, and at the end."""
        if self._dropped and (everything or now - self._dropped_told_at >= INTERVAL_S):
            log(logging.WARNING, "events.dropped", {"dropped": self._dropped})
            self._dropped, self._dropped_told_at = 0, now

    async def all_gone(self, timeout_s: float) -> None:
        """Wait until the last one has told everything and left."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)

    async def _open(self, member: Member, end: socket.socket) -> None:
        channel = Channel(partial(self._received, member), partial(self._left, member), partial(self._tell, member))
        try:
            await open_channel(end, channel)
        except OSError:
            self._left(member)
            return
        member.channel = channel
        self._tell_all()

    def _left(self, member: Member) -> None:
        if member in self._members:
            self._members.remove(member)
            self.totals.ended(member.pid)
            self._tell_all()
        if not self._members:
            self._empty.set()

    def _tell_all(self) -> None:
        for member in self._members:
            self._tell(member)

    def _tell(self, member: Member) -> None:
        """Bring a worker up to date; without room it is told when there is some."""
        if member.channel is None:
            return
        policy, workers = member.sent
        if self.policy is not policy and self.policy is not None and member.channel.send(self.policy):
            policy = self.policy
        if workers != len(self) and member.channel.send(Fleet(len(self))):
            workers = len(self)
        member.sent = (policy, workers)

    def _received(self, member: Member, message: Message) -> None:
        match message:
            case Happened():
                for event in message.events:
                    self._publish(event)
                self._dropped += message.dropped - member.dropped
                member.dropped = message.dropped
            case Did():
                self._add(message)
            case Counted():
                self.totals.heard(member.pid, message.figures)
            case Applied():
                self._note_applied(member, message)
            case _:
                pass

    def did(self) -> Activity:
        """Return what agents did since it was last asked, wherever their requests went."""
        taken, self._did = self._did, Activity()
        return taken

    def _add(self, told: Did) -> None:
        for who, use in told.agents:
            add_use(self._did.agents.setdefault(who, AgentUse()), use)
        for key, loop in told.loops:
            add_use(self._did.loops.setdefault(key, LoopUse()), loop)
        for key, count in told.shadow:
            self._did.shadow[key] = self._did.shadow.get(key, 0) + count

    def _note_applied(self, member: Member, applied: Applied) -> None:
        member.applied = applied.number
        if applied.problem:
            fields = {"worker": member.number, "problem": applied.problem, "meanwhile": "it goes on with the old one"}
            log(logging.ERROR, "bundle.not_applied", fields)
