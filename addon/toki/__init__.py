"""toki: a mitmproxy addon that steers requests to the llama-server slot that already holds their prefix."""

__version__ = "0.1.0"
