"""The API shapes of llama-server that carry prompts, one module each."""
