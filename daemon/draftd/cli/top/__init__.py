"""`draftd top`: from a daemon's successive snapshots to a live screen."""
