"""gRPC between gateways and target servers: the contract's generated code, channels, security."""
