"""Whose request is it? A name for each API key, that tells keys apart and nothing else.

With `toki_isolate=key` the engine keeps apart what the requests of different keys leave on a server. It needs to know
only whether two keys are the same, so it gets a keyed hash under a key that is drawn at each start and never leaves
this process: from the names, or from two runs' names, no one learns an API key, or that two are the same.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from toki.server import Auth

SCHEME = "bearer "


class Owners:
    """Names API keys. `apart`: whether they are told apart at all; else all requests are of the owner ""."""

    def __init__(self, apart: bool) -> None:
        self._apart = apart
        self._key = os.urandom(32)

    def of(self, auth: Auth) -> str:
        """The owner of a request with these credentials. A key is the same one in either header; requests without any
        are all of one owner, and one with two keys is of another than those with either."""
        if not self._apart:
            return ""
        digest = blake2b(key=self._key, digest_size=16)
        for key in sorted(_keys(auth)):
            digest.update(len(key).to_bytes(8, "big") + key)
        return digest.hexdigest()


def _keys(auth: Auth) -> set[bytes]:
    """The API keys in these headers, as a server reads them."""
    given = auth.authorization or ""
    bearer = given[len(SCHEME) :] if given.lower().startswith(SCHEME) else given
    keys = (key.strip() for key in (bearer, auth.api_key or ""))
    return {key.encode("utf-8", "surrogateescape") for key in keys if key}
