"""`make run`: toki on 127.0.0.1:8081 in front of the llama-server at LLAMA_URL, or of an embedded one.

Environment: LLAMA_URL (default http://127.0.0.1:8080; where it is not set and no llama-server answers there, one with a
small real model is started) and PORT (default 8081). Ctrl-C or SIGTERM ends everything that was started here.
Exit status: 0 ended by the user, 2 could not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

import requests

from servers import Flags
from servers import smollm2
from servers import start
from toki.cli import main as toki

USUAL = "http://127.0.0.1:8080"
PATIENCE = 3.0  # seconds for an answer to GET /health


def main() -> int:
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    port = os.environ.get("PORT", "8081")
    url = os.environ.get("LLAMA_URL", "")
    try:
        with contextlib.ExitStack() as stack:
            trouble = why_no_llama_server(url or USUAL)
            if url and trouble:
                print(f"LLAMA_URL={url}: {trouble}", file=sys.stderr)
                return 2
            if trouble:
                print(f"{USUAL}: {trouble}. Starting an embedded llama-server with a small model ...", flush=True)
                flags = Flags(threads=os.cpu_count())
                url = stack.enter_context(start(smollm2(), flags)).url
                print(f"embedded llama-server (SmolLM2-135M-Instruct): {url}", flush=True)
            return toki(["run", url or USUAL, "--port", port])
    except KeyboardInterrupt:
        return 0
    except (FileNotFoundError, RuntimeError) as error:  # no model, or the embedded server did not start
        print(error, file=sys.stderr)
        return 2


def why_no_llama_server(url: str) -> str:
    """What is wrong with `url`, or "" where a llama-server answers there (ready or not, with a key or without)."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            answer = session.get(f"{url.rstrip('/')}/health", timeout=PATIENCE)
            said = answer.json()
        except requests.JSONDecodeError:
            return "what answers there is no llama-server"
        except requests.RequestException:
            return "nothing answers there"
    known = isinstance(said, dict) and ("status" in said or "error" in said)
    return "" if known else "what answers there is no llama-server"


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
