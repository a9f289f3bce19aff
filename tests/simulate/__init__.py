"""The simulator: random programs of many clients on servers, and each reply compared with the reference."""
