"""Calls that XLA compiles into its programs: what they ask for, the library of their handler, and their primitive."""
