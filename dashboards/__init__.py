"""Dashboards and alert rules as code: queries from the telemetry catalog, and what is generated from them."""
