"""Draws the generated dashboards from a Prometheus as a user would see them, without Grafana and a browser.

It reads Grafana's JSON, sends each panel's queries for a time range, and draws the results.
"""
