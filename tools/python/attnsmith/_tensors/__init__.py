"""Tensors of every framework, as views: what the library needs to know of them, and the structs of one call."""
