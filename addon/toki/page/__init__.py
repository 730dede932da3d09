"""The page: what toki sees and has found, in a browser, as JSON, and as metrics; served by the addon itself.

Nothing here is on a request's way to the server. What is shown passes through plain dataclasses (model.py), from which
HTML (render.py) and JSON are made alike.
"""
