"""Alerts that act: the webhook that hears of them from Grafana and Alertmanager, the poll for those that it missed."""
