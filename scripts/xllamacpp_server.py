"""The second server build in a process of its own: `python xllamacpp_server.py '{"n_parallel": 4, ...}'`.

The argument holds fields of xllamacpp's CommonParams; `model` and `mmproj` are paths, `lora_adapters` is a list of
them, `n_threads` goes to the CPU parameters, and `pooling_type` is a word as on llama-server's command line. Ends on
SIGTERM, as any Python process does.
"""

from __future__ import annotations

import json
import signal
import sys

import xllamacpp


def main(argument: str) -> None:
    params = xllamacpp.CommonParams()
    for name, value in json.loads(argument).items():
        if name in ("model", "mmproj"):
            getattr(params, name).path = value
        elif name == "n_threads":
            params.cpuparams.n_threads = value
        elif name == "lora_adapters":
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path) for path in value]
        elif name == "pooling_type":
            params.pooling_type = xllamacpp.llama_pooling_type[f"LLAMA_POOLING_TYPE_{value.upper()}"]
        elif hasattr(params, name):
            setattr(params, name, value)
        else:
            raise SystemExit(f"xllamacpp's CommonParams has no field {name}")
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
