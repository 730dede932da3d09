"""What a person looks at: a server's health, recorded traffic, and what other flags would do to it."""
