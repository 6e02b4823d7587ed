"""The dashboards' PromQL, apart from the panels that show it. What alerts share comes from `dashboards.ratios`."""
