"""attnsmith measured beside its peers: see tools/bench/README.md."""
