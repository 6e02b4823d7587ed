"""`draftd dashboards`: what is shipped, what a Grafana has of it, and how the one becomes the other.

content (what is shipped) and datasources (which of the Grafana's it reads) make `wanted`; `reading` asks the Grafana
what it has; `plan` compares the two and is pure; `applying` carries a plan out; `show` prints it. Only `client` speaks
HTTP.
"""
