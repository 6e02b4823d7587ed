"""Dashboards and alert rules for Grafana, generated from the project's dashboards/ folder."""
