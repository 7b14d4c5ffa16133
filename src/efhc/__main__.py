"""`python -m efhc`"""

from efhc.cli import main

main()
