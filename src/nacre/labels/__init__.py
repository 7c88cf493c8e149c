"""Labels, and the channels that they become."""
