"""The kinds of networks, one file each: what a config says of it, and how it is made."""
