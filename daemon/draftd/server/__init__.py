"""The gRPC face of the daemon: text in, text out, and every refusal with a status that says why."""
