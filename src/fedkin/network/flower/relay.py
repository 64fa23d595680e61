"""The app that Flower starts on a node for each message: it hands the letter to the process that holds the samples.

Where there is no such process, it does the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedkin.errors import FedkinError
from fedkin.network.flower.carried import letter_of, refusal_of, reply_of
from fedkin.network.flower.sockets import ask

__all__ = ["SOCKET", "client_app", "relayed"]

# The name in a SuperNode's configuration of the socket of `fedkin flower node`.
SOCKET = "fedkin-socket"

Alone = Callable[[bytes, Any], bytes]


def client_app(alone: Alone) -> Any:
    """Return the ClientApp of a fedkin experiment; raises ImportError without Flower.

    alone: answers a letter where no socket is configured, given the letter and Flower's context.
    """
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def query(message: Any, context: Any) -> Any:
        return relayed(message, context, alone)

    app.query()(query)
    return app


def relayed(message: Any, context: Any, alone: Alone) -> Any:
    """Return the reply to a Flower message: what `fedkin flower node` or `alone` answers, or why nothing came."""
    path = context.node_config.get(SOCKET)
    try:
        letter = letter_of(message)
        return reply_of(message, ask(str(path), letter) if path else alone(letter, context))
    except (ConnectionError, ValueError, FedkinError) as error:
        return refusal_of(message, str(error))
