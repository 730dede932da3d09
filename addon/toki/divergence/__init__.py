"""Do two answers to one prompt say the same? Exact rules first, for what an embedding is blind to; then an embedding.

llama-server does not promise the same bits with a reused prefix as without one. `classify` tells a harmless difference
from one that matters; docs/divergence.md has its rules, what they can't do, and how often they are right.
"""

from __future__ import annotations

from toki.divergence.judge import Divergence
from toki.divergence.judge import Verdict
from toki.divergence.judge import classify
from toki.divergence.judge import judge
from toki.divergence.meaning import embedding_in_use

__all__ = ["Divergence", "Verdict", "classify", "embedding_in_use", "judge"]
