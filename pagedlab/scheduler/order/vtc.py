"""Virtual token counter: fair to clients, whatever they send (Sheng et al., OSDI 2024, algorithm 2)."""

from __future__ import annotations

import heapq

from pagedlab.allocator.base import Allocator
from pagedlab.core.request import Sequence
from pagedlab.scheduler.order.base import ORDERS, Order
from pagedlab.settings import SchedulerSettings


@ORDERS.register("vtc")
class VirtualTokenCounter(Order):
    """The client that was served least is next, with its earliest request; ties go to the request that came first.

    Service is input_weight for each token of a prompt, charged when the request is first admitted, and output_weight
    for each generated one. A client that comes back from idleness is lifted to the least counter of those that wait, or
    to that of the last client that waited: it saves nothing up. Between two clients that always have requests waiting,
    service differs by at most 2 x max(input_weight x longest prompt, output_weight x tokens of a batch) over any time
    (theorem 4.4), where nobody is preempted. So nobody is starved by others; a client can only fill its own queue.
    """

    watches = True

    def __init__(self, settings: SchedulerSettings, allocator: Allocator, seed: int):
        super().__init__(settings, allocator, seed)
        self.counters: dict[str, float] = {}
        self.lifts = 0
        self._queues: dict[str, list[tuple[float, int, Sequence]]] = {}  # of clients that wait
        self._last_to_leave: str | None = None

    def key(self, seq: Sequence) -> float:
        """Within a client."""
        return seq.request.arrival_s

    def rank(self, seq: Sequence) -> tuple[float, float, int]:
        return self.counters[seq.request.client], self.key(seq), seq.id

    def push(self, seq: Sequence) -> None:
        client = seq.request.client
        if client not in self._queues:
            self._lift(client)
        heapq.heappush(self._queues.setdefault(client, []), (self.key(seq), seq.id, seq))

    def _lift(self, client: str) -> None:
        own = self.counters.setdefault(client, 0.0)
        if self._queues:
            least = min(self.counters[other] for other in self._queues)
        else:
            least = self.counters[self._last_to_leave] if self._last_to_leave is not None else 0.0
        if least > own:
            self.counters[client] = least
            self.lifts += 1

    def _next(self) -> str:
        return min(self._queues, key=lambda client: (self.counters[client], self._queues[client][0][:2]))

    def peek(self) -> Sequence | None:
        return self._queues[self._next()][0][2] if self._queues else None

    def pop(self) -> Sequence:
        client = self._next()
        seq = heapq.heappop(self._queues[client])[2]
        self._left(client)
        if not seq.preemptions:
            self.counters[client] += self.settings.vtc.input_weight * seq.request.prompt_tokens
        return seq

    def remove(self, seq: Sequence) -> None:
        client = seq.request.client
        self._queues[client] = [entry for entry in self._queues[client] if entry[2] is not seq]
        heapq.heapify(self._queues[client])
        self._left(client)

    def _left(self, client: str) -> None:
        if not self._queues[client]:
            del self._queues[client]
            self._last_to_leave = client

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def sequences(self) -> list[Sequence]:
        return [seq for queue in self._queues.values() for _, _, seq in queue]

    def served(self, seq: Sequence, fed: int, generated: int) -> None:
        self.counters[seq.request.client] += self.settings.vtc.output_weight * generated
