"""A page that runs exported models in a browser."""
