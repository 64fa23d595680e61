"""Settings of a Zenoh session: mutual TLS 1.3, access control, and no discovery.

A participant may answer and ask only in its own name, which is the common name of the certificate of its link.
Everything else is denied, also patterns with `*`.
Keys: fedkin/OWNER/ASKER/SUBJECT and fedkin-alive/NAME.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkin.network.identity import Identity, certificate_pem

# KEY/OWNER/ASKER: OWNER answers ASKER. ALIVE/NAME: NAME is connected. All keys that a participant may declare are
# listed for its link, so that no participant can fill the memory of others with keys.
KEY, ALIVE = "fedkin", "fedkin-alive"
# Bytes of a part. A large message is sent in many parts, so that small messages can overtake it on a slow link.
PART = 1 << 18
_LEASE_MS = 10_000
# Batches of 64 KiB that may wait to be sent, at most 16; and how long a sender waits if the queue is full. A link that
# was cut meanwhile is opened again only after that.
_QUEUE, _BLOCKED_US = 16, 10_000_000
_ANSWER, _ASK = ["reply", "declare_queryable"], ["query"]
_TOKEN, _WATCH = ["liveliness_token"], ["liveliness_query", "declare_liveliness_subscriber"]

# What a link may carry: (messages, their keys if they come in, their keys if they go out).
_Rule = tuple[list[str], list[str], list[str]]


def participant_config(
    identity: Identity, others: Iterable[str], listen: Sequence[str], dial: Sequence[str], router: str = ""
) -> str:  # fmt: skip
    """Return the settings of a participant's session, as JSON; listen, dial: locators.

    router: name of the router, if it is the only link; this participant must then trust it on who sent a message.
    """
    me = identity.name
    rules: dict[str, list[_Rule]] = {}
    for name in others:
        rules.setdefault(router or name, []).extend([
            (_ANSWER, [f"{KEY}/{name}/{me}"], [f"{KEY}/{me}/{name}"]),
            (_ASK, [f"{KEY}/{me}/{name}"], [f"{KEY}/{name}/{me}"]),
            (_TOKEN, [f"{ALIVE}/{name}"], [f"{ALIVE}/{me}"]),
            (_WATCH, [f"{ALIVE}/*"], [f"{ALIVE}/*"]),
        ])  # fmt: skip
    return _settings("client" if router else "peer", identity, rules, listen, dial)


def router_config(identity: Identity, names: Iterable[str], listen: Sequence[str]) -> str:
    """Return the settings of a router's session, as JSON: each participant asks and answers only in its own name."""
    names, rules = sorted(names), dict[str, list[_Rule]]()
    for name in names:
        own = [f"{KEY}/{name}/{other}" for other in names if other != name]
        rules[name] = [
            (["reply"], own, [f"{KEY}/*/{name}"]),
            (["declare_queryable"], own, [f"{KEY}/*/*"]),
            (_ASK, [f"{KEY}/*/{name}"], [f"{KEY}/{name}/*"]),
            (_TOKEN, [f"{ALIVE}/{name}"], [f"{ALIVE}/*"]),
            (_WATCH, [f"{ALIVE}/*"], [f"{ALIVE}/*"]),
        ]
    return _settings("router", identity, rules, listen, [])


def _settings(
    mode: str, identity: Identity, rules: Mapping[str, list[_Rule]], listen: Sequence[str], dial: Sequence[str]
) -> str:  # fmt: skip
    return json.dumps({
        "mode": mode,
        "listen": {"endpoints": list(listen), "timeout_ms": 0, "exit_on_failure": True},
        "connect": {
            "endpoints": list(dial), "timeout_ms": -1, "exit_on_failure": False,  # retry without end, in the background
            "retry": {"period_init_ms": 200, "period_max_ms": 4000, "period_increase_factor": 2},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "adminspace": {"enabled": False},
        "access_control": _access_control(rules),
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


def _access_control(rules_by_name: Mapping[str, list[_Rule]]) -> dict[str, Any]:
    """Return the tables of Zenoh's access control: rules by the common name of the link's certificate."""
    rules, subjects, policies = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for name, allowed in rules_by_name.items():
        ids = []
        for messages, *ways in allowed:
            for flow, keys in zip(("ingress", "egress"), ways, strict=True):
                ids.append(f"rule{len(rules)}")
                rules.append({
                    "id": ids[-1], "permission": "allow", "messages": messages, "flows": [flow], "key_exprs": keys,
                })  # fmt: skip
        subjects.append({"id": name, "cert_common_names": [name]})
        policies.append({"rules": ids, "subjects": [name]})
    tables = {"rules": rules, "subjects": subjects, "policies": policies}
    return {"enabled": True, "default_permission": "deny", **tables}


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
