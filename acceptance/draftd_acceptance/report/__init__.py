"""A run's report, as an HTML page and as Markdown: the verdict first, then the evidence."""
