"""Tables: cells, columns, kinds, and the forms they are written in."""
