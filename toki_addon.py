"""What `mitmdump -s toki_addon.py` loads: from a checkout (an `addon/` beside this file wins) or an installed toki."""

import logging
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALL = "pip install mitmproxy-toki"

if (HERE / "addon" / "toki").is_dir():
    sys.path.insert(0, str(HERE / "addon"))
elif (HERE / "py.typed").is_file():  # in the package, whose modules must not be importable by their bare names
    sys.path[:] = [path for path in sys.path if path != str(HERE)]

try:
    from toki.addon import Toki
except ModuleNotFoundError as error:
    addons = []
    if error.name == "toki":
        logging.error(f"toki is not installed beside this mitmproxy: {INSTALL}")
    elif error.name == "toki.addon":
        logging.error(f"the package toki found here is another project: pip uninstall toki, then {INSTALL}")
    else:
        logging.error(f"toki needs {error.name}, which is not installed: {INSTALL}")
else:
    addons = [Toki()]
