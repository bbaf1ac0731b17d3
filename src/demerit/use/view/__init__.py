"""Episodes in a browser: a local server, pictures and videos, and the page of `demerit view`."""
