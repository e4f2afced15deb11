"""Work on a sequence in threads, a few items ahead of who takes the results, which come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

WORKERS = 2
_IN_FLIGHT = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``work(item)`` of every item, in order; memory is bounded by the few results that are ahead."""
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) >= _IN_FLIGHT:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
