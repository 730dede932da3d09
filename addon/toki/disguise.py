"""What stands in an event log for tokens, texts and vectors: values that tell equal things apart from unequal ones,
and nothing else to anyone who does not have the log's key, which is never written.

The engine asks token lists one question: how long is their exact common prefix? So each token is replaced by a hash
of its whole prefix, itself included. Lists keep their common prefixes, and no hash can be looked up by its token.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from dataclasses import field
from hashlib import blake2b
from hashlib import shake_256

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher  # comes with mitmproxy
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from toki.engine.embedding import embed_prefix
from toki.engine.tokens import Tokens

_BITS = 31  # of a hash: it stands where a token id stood, which is an int32 from 0


@dataclass(frozen=True, slots=True)
class End:
    """Where a token list ended, so that what comes behind it can be hashed: its length and the sum of its blocks."""

    length: int = 0
    total: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(2, np.uint64))  # shape (2,)


class Disguise:
    """Hides what is logged behind random keys of its own. Thread-safe.

    Equal prefixes have equal hashes. Where two lists part, at position i, their hashes at i are equal by chance once
    in 2**31: the AES block of (i, token) differs, so the sums over all blocks differ in 128 bits (but for a chance of
    about 2**-128), and the AES block of the sum, of which 31 bits are shown, is a pseudorandom function of the prefix.
    Such a collision makes a common prefix a token longer; of 10,000 prompts that each part from others at 64 places
    one log in 3,000 has one. What lies behind the parting does not matter.
    """

    def __init__(self) -> None:
        self._blocks, self._sums, self._rest = os.urandom(32), os.urandom(32), os.urandom(32)

    def tokens(self, ids: npt.NDArray[np.int32], behind: End | None = None) -> tuple[npt.NDArray[np.int32], End]:
        """The prefix hashes of `ids`, int32 of their shape, where they stand `behind` another list; and their end."""
        behind = behind or End()
        numbered = np.empty((len(ids), 2), "<u8")
        numbered[:, 0] = np.arange(behind.length, behind.length + len(ids))
        numbered[:, 1] = ids
        sums = np.cumsum(_encrypt(self._blocks, numbered), axis=0, dtype=np.uint64) + behind.total  # modulo 2**64
        hashes = (_encrypt(self._sums, sums.astype("<u8"))[:, 0] >> np.uint64(64 - _BITS)).astype(np.int32)
        return hashes, End(behind.length + len(ids), sums[-1] if len(ids) else behind.total)

    def embed(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """The prefix embedding of the hashes of `tokens`: as good as that of the tokens themselves, and it needs not
        be logged. That of the tokens would let a reader of the log confirm what he guesses."""
        return embed_prefix(Tokens.of(self.tokens(tokens.ids)[0]))

    def vector(self, vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """`vector` with random dimensions negated, the same ones of all vectors of one length: all dot products stay
        the same to the last bit. Still, who knows the embedding model and has many vectors may learn the signs."""
        negated = np.unpackbits(np.frombuffer(shake_256(self._rest).digest(-(-len(vector) // 8)), np.uint8))
        return np.where(negated[: len(vector)], -vector, vector)

    def text(self, text: str) -> str:
        """A name for `text`; "" stays as it is."""
        if not text:
            return text
        return f"text-{blake2b(text.encode(errors='surrogatepass'), key=self._rest, digest_size=8).hexdigest()}"


def _encrypt(key: bytes, blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each row of `blocks` (16 bytes, shape (n, 2)) by itself: AES as a pseudorandom function."""
    encrypted = Cipher(AES(key), ECB()).encryptor().update(blocks.tobytes())
    return np.frombuffer(encrypted, "<u8").reshape(blocks.shape)
