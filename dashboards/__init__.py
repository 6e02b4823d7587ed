"""Dashboards and alert rules as code: PromQL queries from the telemetry catalog, and the files generated from them."""
