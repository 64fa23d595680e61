"""The app that Flower starts on a node for each message: it hands the letter to the process that holds the samples.

Where there is no such process, it does the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import print_exc
from typing import Any

from fedkin.errors import FedkinError
from fedkin.network.flower.carried import letter_of, refusal_of, reply_of
from fedkin.network.flower.sockets import ask

__all__ = ["SOCKET", "client_app", "relayed"]

# The name in a SuperNode's configuration of the socket of `fedkin flower node`.
SOCKET = "fedkin-socket"
_UNABLE = "this client cannot take part: its SuperNode's log says why"

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
    """Return the reply to a Flower message: what `fedkin flower node` or `alone` answers, or why nothing came.

    What `alone` raises is printed here, into the SuperNode's log, and the reply says no more than that.
    """
    path = context.node_config.get(SOCKET)
    try:
        letter = letter_of(message)
        if path:
            return reply_of(message, ask(str(path), letter))
    except (ConnectionError, ValueError) as error:
        return refusal_of(message, str(error))
    try:
        answer = alone(letter, context)
    except Exception as error:  # it may quote a sample, and Flower would send its text to the server
        print(f"fedkin: {error}", flush=True)
        if not isinstance(error, FedkinError):
            print_exc()
        return refusal_of(message, _UNABLE)
    return reply_of(message, answer)
