"""The Python interface: what `import nacre` offers."""
