"""Redis Cluster and Sentinel as the backend: shards, moved slots, new masters."""
