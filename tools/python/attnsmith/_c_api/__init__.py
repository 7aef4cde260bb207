"""The C ABI in Python: its declarations, how the library is found and called, and the owners of its objects."""
