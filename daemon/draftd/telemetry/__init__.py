"""Telemetry: spans, metrics and log events, all named in one catalog, none able to hurt a request.

`catalog` is the data; `setup.Telemetry` is what the daemon holds. Nothing here sets a global provider.
"""
