"""Who may see the page: this machine, or whoever knows the token; and no other site through a browser.

- DNS rebinding: a site can let its own name point here, so that the browser takes the page for that site's. The Host
  that the browser sends is then the site's name; without the token only names of this machine are let in.
- CSRF: browsers say from which site a request comes (Sec-Fetch-Site, Origin). What comes from another one is refused,
  unless a person follows a link. The algorithm is that of Go 1.25's http.CrossOriginProtection.
- A proxy can be asked to ask itself, and other proxies may stand before this one: then the connection comes from this
  machine, and the client does not.

Pure: no mitmproxy, no I/O.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from ipaddress import ip_address
from urllib.parse import urlsplit

# A proxy in front adds one of these, or one that begins so; what it speaks for may be anywhere.
FORWARDED = (
    "forwarded", "via", "x-forwarded", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-forwarded-for",
    "x-envoy-", "true-client-ip", "cf-connecting-ip", "fly-client-ip", "fastly-client-ip",
)  # fmt: skip
ASK = (("WWW-Authenticate", 'Bearer realm="toki"'), ("WWW-Authenticate", 'Basic realm="toki", charset="UTF-8"'))
NO_TOKEN = "toki's page answers only this machine: toki_token is not set."
WANTS_TOKEN = "toki's page answers only this machine, or who sends toki_token (Authorization: Bearer)."


@dataclass(frozen=True, slots=True)
class Visit:
    """What is known of a client that wants to see something.

    `peer`: its address; `own`: the connection is one of this very process; `host`: the Host that it sent, None where
    that can't be known; `name`: the name that the page goes by where it is asked for by one, "" else. Header names in
    lower case.
    """

    method: str
    peer: str
    own: bool
    host: str | None
    name: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client is not let in."""

    status: int
    text: str
    headers: tuple[tuple[str, str], ...] = ()


def refusal(visit: Visit, token: str) -> Refusal | None:
    """Why `visit` is refused; None: it may see everything, and with the token change something."""
    if _from_another_site(visit):
        return Refusal(403, "another site may not ask for this")
    if carries(visit.headers.get("authorization", ""), token):
        return None
    if visit.method not in ("GET", "HEAD"):
        if not token:
            return Refusal(403, "toki_token is not set, and without it nothing can be changed.")
        return Refusal(401, "to change something send toki_token (Authorization: Bearer).", ASK)
    if visit.own or not is_loopback(visit.peer) or any(name.startswith(FORWARDED) for name in visit.headers):
        return Refusal(401, WANTS_TOKEN, ASK) if token else Refusal(403, NO_TOKEN)
    if visit.host is None:
        text = "what Host was asked for can't be known before an https server."
        return Refusal(401, f"{text} {WANTS_TOKEN}", ASK) if token else Refusal(403, f"{text} {NO_TOKEN}")
    host = _host(visit.host)
    if host != "localhost" and not is_loopback(host) and (not visit.name or host != visit.name):
        return Refusal(403, "this Host is no name of this machine: ask for 127.0.0.1 or localhost, or send toki_token.")
    return None


def is_loopback(address: str) -> bool:
    """Whether an IP address, maybe with a zone, is one of the loopback interface; a name never is."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback


def _host(header: str) -> str:
    """The name or address in a Host header; "" where there is none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _from_another_site(visit: Visit) -> bool:
    headers = visit.headers
    site = headers.get("sec-fetch-site")
    if site in ("none", "same-origin"):
        return False
    if site is not None:
        follows_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return not (visit.method == "GET" and follows_link)
    origin = headers.get("origin")  # of an older browser
    return origin is not None and (visit.host is None or _netloc(origin) != visit.host.lower())


def _netloc(origin: str) -> str:
    """Host and port of an Origin; "" of one that is none, such as "null"."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def carries(authorization: str, token: str) -> bool:
    """Whether an Authorization header carries the token, as Bearer or as the password of Basic; never one that is not
    set."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "basic":
        try:
            value = b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no text in it
            return False
    elif scheme.lower() != "bearer":
        return False
    return token != "" and hmac.compare_digest(value.strip().encode(), token.encode())
