"""Checks of arguments, warnings and other helpers that need nothing of the library."""
