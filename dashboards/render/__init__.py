"""Draws the generated dashboards from a Prometheus: what a user will see, without a Grafana and its browser.

It reads the JSON that Grafana reads, runs each panel's own queries over a time range, and draws what came back.
"""
