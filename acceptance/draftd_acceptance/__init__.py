"""Is this pair, on this machine, fit for production? A client of a daemon that measures, judges and reports."""
