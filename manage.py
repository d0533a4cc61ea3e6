#!/usr/bin/env python
"""The Django entry: `python manage.py <command>`."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        bool(settings.DEBUG)  # reads the environment: a wrong value there is the user's to mend, not a fault
    except ImproperlyConfigured as error:
        sys.stderr.write(f"meridian: {error}\n")
        sys.exit(2)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
