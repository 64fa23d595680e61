"""Settings of a Zenoh session: mutual TLS 1.3, who may say and ask what, and no discovery.

A participant answers only under its own name and asks only in its own name, by the common name of the certificate of
its link. Everything else is denied, also patterns with `*`.
Keys: fedkin/OWNER/ASKER/SUBJECT and fedkin-alive/NAME.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from fedkin.errors import ConfigError
from fedkin.network.identity import Identity, certificate_pem
from fedkin.network.join_file import locator

__all__ = ["ALIVE", "KEY", "PART", "listen_locator", "participant_config", "router_config"]

KEY, ALIVE = "fedkin", "fedkin-alive"
# Bytes of a part, of which a message larger than the first part has many: a small one overtakes them on a slow link.
PART = 1 << 18
_LEASE_MS = 10_000
# Batches of 64 KiB that may wait to be sent, at most 16; and how long a sender waits that finds the queue full. A link
# that was cut meanwhile is opened again only after that.
_QUEUE, _BLOCKED_US = 16, 10_000_000
_ANSWER, _ASK = ["reply", "declare_queryable"], ["query"]
_TOKEN, _WATCH = ["liveliness_token"], ["liveliness_query", "declare_liveliness_subscriber"]


def listen_locator(text: str) -> str:
    """Return the text if one can listen at this locator; raises ConfigError."""
    try:
        return locator(text)
    except ValueError as error:
        raise ConfigError(f"listen: {error}") from None


def participant_config(
    identity: Identity, others: Iterable[str], listen: Sequence[str], dial: Sequence[str], router: str = ""
) -> str:  # fmt: skip
    """Return the settings of a participant's session, as JSON; listen, dial: locators.

    router: the name of the only link; who sent what comes over it is known only as far as the router is believed.
    """
    rules = _Rules()
    me = identity.name
    for name in others:
        rules.link = router or name
        rules.allow(name, "ingress", _ANSWER, f"{KEY}/{name}/**")
        rules.allow(name, "ingress", _ASK, f"{KEY}/{me}/{name}/**")
        rules.allow(name, "ingress", _TOKEN, f"{ALIVE}/{name}")
        rules.allow(name, "egress", _ANSWER, f"{KEY}/{me}/**")
        rules.allow(name, "egress", _ASK, f"{KEY}/{name}/{me}/**")
        rules.allow(name, "egress", _TOKEN, f"{ALIVE}/{me}")
        rules.allow(name, "ingress", _WATCH, f"{ALIVE}/*")
        rules.allow(name, "egress", _WATCH, f"{ALIVE}/*")
    return _settings("client" if router else "peer", identity, rules, listen, dial)


def router_config(identity: Identity, names: Iterable[str], listen: Sequence[str]) -> str:
    """Return the settings of a router's session, as JSON: each participant asks and answers in its own name alone."""
    rules = _Rules()
    for name in names:
        rules.allow(name, "ingress", _ANSWER, f"{KEY}/{name}/**")
        rules.allow(name, "ingress", _ASK, f"{KEY}/*/{name}/**")
        rules.allow(name, "ingress", _TOKEN, f"{ALIVE}/{name}")
        rules.allow(name, "egress", ["reply"], f"{KEY}/*/{name}/**")
        rules.allow(name, "egress", ["declare_queryable"], f"{KEY}/**")
        rules.allow(name, "egress", _ASK, f"{KEY}/{name}/**")
        rules.allow(name, "egress", _TOKEN, f"{ALIVE}/*")
        rules.allow(name, "ingress", _WATCH, f"{ALIVE}/*")
        rules.allow(name, "egress", _WATCH, f"{ALIVE}/*")
    return _settings("router", identity, rules, listen, [])


def _settings(mode: str, identity: Identity, rules: _Rules, listen: Sequence[str], dial: Sequence[str]) -> str:
    return json.dumps({
        "mode": mode,
        "listen": {"endpoints": list(listen), "timeout_ms": 0, "exit_on_failure": True},
        "connect": {
            "endpoints": list(dial), "timeout_ms": -1, "exit_on_failure": False,  # again and again, and aside
            "retry": {"period_init_ms": 200, "period_max_ms": 4000, "period_increase_factor": 2},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "adminspace": {"enabled": False},
        "access_control": {"enabled": True, "default_permission": "deny", **rules.tables},
        "transport": {
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "tls": _tls(identity),
                "rx": {"max_message_size": 4 * PART},
                "tx": {
                    "lease": _LEASE_MS,
                    "queue": {
                        "size": {"background": _QUEUE}, "allocation": {"mode": "lazy"},
                        "congestion_control": {"block": {"wait_before_close": _BLOCKED_US}},
                    },
                },
            },
        },
    })  # fmt: skip


def _tls(identity: Identity) -> dict[str, Any]:
    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    key, chain = encoded(identity.key_pem), encoded(certificate_pem(identity.chain))
    return {
        "root_ca_certificate_base64": encoded(certificate_pem(identity.roots)),
        "enable_mtls": True, "verify_name_on_connect": True, "close_link_on_expiration": True,
        "listen_private_key_base64": key, "listen_certificate_base64": chain,
        "connect_private_key_base64": key, "connect_certificate_base64": chain,
    }  # fmt: skip


class _Rules:
    """The three tables of Zenoh's access control."""

    def __init__(self) -> None:
        self.link = ""  # the common name of the link, if it is another than who is allowed
        self.tables: dict[str, list[dict[str, Any]]] = {"rules": [], "subjects": [], "policies": []}

    def allow(self, name: str, flow: str, messages: list[str], key: str) -> None:
        """Allow what comes from (ingress) or goes to (egress) the link with this common name, or that of `link`."""
        name = self.link or name
        rule = f"rule{len(self.tables['rules'])}"
        self.tables["rules"].append({
            "id": rule, "permission": "allow", "messages": messages, "flows": [flow], "key_exprs": [key],
        })  # fmt: skip
        if not self.tables["subjects"] or self.tables["subjects"][-1]["id"] != name:
            self.tables["subjects"].append({"id": name, "cert_common_names": [name]})
            self.tables["policies"].append({"rules": [], "subjects": [name]})
        self.tables["policies"][-1]["rules"].append(rule)
