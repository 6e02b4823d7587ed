"""`draftd dashboards`: the shipped content, the Grafana that gets it, and the changes to make there."""
