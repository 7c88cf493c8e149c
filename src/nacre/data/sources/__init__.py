"""One file per data set, and the table of them in `nacre.data`."""
