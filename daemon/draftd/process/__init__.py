"""An engine in its own process, which may end and be started again: the daemon's side (handle, child), the process
(main), and the messages between them (ipc)."""
