"""What a person looks at: a server's health, recorded traffic, what other flags would do to it, and for each request
why its prompt was processed again. Texts of prompts live in memory only.
"""
