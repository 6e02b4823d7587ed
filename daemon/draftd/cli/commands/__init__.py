"""One file for each command. Heavy modules (gRPC, MLX, OpenTelemetry) are imported inside the command."""
