"""The commands of the acceptance harness. `draftd` finds them by the entry points `draftd.commands`."""
