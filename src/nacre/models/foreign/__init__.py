"""Others' networks: finding what scores their classes, widening it, and learning with them."""
