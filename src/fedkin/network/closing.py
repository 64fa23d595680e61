"""Links that are left open when a process ends.

Python waits for the threads of a Zenoh session before it calls what atexit knows, and so never ends while one is open.
"""

from __future__ import annotations

from threading import Lock, Thread, main_thread
from weakref import WeakSet

from fedkin.network.link import Link

__all__ = ["close_at_the_end"]

_OPEN: WeakSet[Link] = WeakSet()
_WATCHED = Lock()


def close_at_the_end(link: Link) -> None:
    """Have this link closed when the main thread ends, if it is open then."""
    if _WATCHED.acquire(blocking=False):  # once in a process
        Thread(target=_close_all, name="fedkin-end").start()
    _OPEN.add(link)


def _close_all() -> None:
    main_thread().join()
    for link in list(_OPEN):
        link.close()
