"""The app that Flower starts on a node for each message: it hands the letter to the process that holds the samples."""

from __future__ import annotations

from typing import Any

from fedkin.network.flower.carried import letter_of, refusal_of, reply_of
from fedkin.network.flower.sockets import ask

__all__ = ["SOCKET", "client_app", "relayed"]

# The name in a SuperNode's configuration of the socket of `fedkin flower node`.
SOCKET = "fedkin-socket"


def client_app() -> Any:
    """Return the ClientApp of a fedkin experiment; raises ImportError without Flower."""
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(relayed)
    return app


def relayed(message: Any, context: Any) -> Any:
    """Return the reply to a Flower message: what `fedkin flower node` on this machine answers, or why nothing came."""
    path = context.node_config.get(SOCKET)
    if not path:
        return refusal_of(message, f"its SuperNode was started without --node-config '{SOCKET}=\"/PATH\"'")
    try:
        return reply_of(message, ask(str(path), letter_of(message)))
    except (ConnectionError, ValueError) as error:
        return refusal_of(message, str(error))
