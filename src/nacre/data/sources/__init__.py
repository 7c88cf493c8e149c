"""One file per data set; `nacre.data` lists them."""
