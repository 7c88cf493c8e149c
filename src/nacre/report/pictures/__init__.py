"""Pictures of what networks see, and the film."""
