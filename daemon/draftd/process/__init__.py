"""An engine in a process of its own, which may end and be started again: the daemon's side (handle, child), the process
(main), and the messages between the two (ipc)."""
