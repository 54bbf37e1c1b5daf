"""`python -m epd_router` is the `epd-router` command."""

from epd_router.cli import main

if __name__ == "__main__":
    main()
