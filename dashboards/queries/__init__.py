"""PromQL of the dashboards, apart from the panels that show it. The queries shared with alerts are in
`dashboards.ratios`."""
