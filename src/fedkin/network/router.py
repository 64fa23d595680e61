"""A router, for participants that can all only dial out: it passes sealed offers between them, and reads none.

It is no participant: it asks nothing and offers nothing. Each participant may ask and answer in its own name alone, by
its certificate, as where no router is.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from fedkin.errors import ConfigError
from fedkin.network.access import ALIVE, listening, located, routing
from fedkin.network.book import Book
from fedkin.network.identity import Identity, verify
from fedkin.network.link import LinkError
from fedkin.untrusted import said

try:
    import zenoh
except ImportError:
    raise ConfigError("a federation over a network needs Zenoh: pip install 'fedkin[network]'") from None

__all__ = ["Router"]


class Router:
    """A running router; leave it with `with` or `close`.

    identity: its own. book: the participants. listen: locators at which they dial it. Raises LinkError if an address
    cannot be listened at, ConfigError for settings that cannot be.
    """

    def __init__(self, identity: Identity, book: Book, listen: Iterable[str]) -> None:
        verify(identity.chain, identity.roots, identity.name, f"the certificate of {identity.name}")
        places = [located(place) for place in listen]
        names = sorted(set(book) - {identity.name})
        try:
            self._session = zenoh.open(zenoh.Config.from_json5(routing(identity, names, places)))
        except zenoh.ZError as error:
            raise LinkError(
                f"{identity.name}: the router cannot be opened ({listening(places)}{said(error)})"
            ) from None
        self._token = self._session.liveliness().declare_token(f"{ALIVE}/{identity.name}")

    def close(self) -> None:
        """Stop; a second call does nothing."""
        if not self._session.is_closed():
            self._session.close()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
