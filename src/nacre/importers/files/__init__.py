"""The files of an export: folders, archives, and documents read piece by piece."""
