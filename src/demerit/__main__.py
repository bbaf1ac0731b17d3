"""`python -m demerit` is the same as `demerit`."""

from demerit.cli import main

main()
