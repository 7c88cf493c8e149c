"""Pictures of what networks see."""
