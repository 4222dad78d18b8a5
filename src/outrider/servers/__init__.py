"""Draft servers (HTTP) and target servers (gRPC), each a process of its own."""
