"""Judge two answers in a process of its own: a JSON list of both on stdin, the class as `Divergence` names it on stdout.

Without models: they are large, and this is started for a single pair.
"""

from __future__ import annotations

import json
import sys

from toki.divergence.judge import judge
from toki.divergence.meaning import deterministic

one, other = json.load(sys.stdin)
print(judge(one, other, deterministic()).divergence)
