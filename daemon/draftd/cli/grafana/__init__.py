"""`draftd dashboards`: what is shipped, the Grafana that it goes to, and what is to be done there."""
