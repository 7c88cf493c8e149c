"""Operators that losses and evaluation share."""
