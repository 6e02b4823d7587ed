"""Telemetry: spans, metrics and log events, all defined in one catalog, none able to harm a request.

`catalog` is the data; `setup.Telemetry` is the object that the daemon uses. Nothing here sets a global provider.
"""
