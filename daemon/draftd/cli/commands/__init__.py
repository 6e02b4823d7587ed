"""One file for each command. Whatever is heavy (gRPC, MLX, OpenTelemetry) is imported inside the command."""
