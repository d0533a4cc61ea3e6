"""One command that runs the whole site on one machine: `python -m webapp.supervisor`; no Django in here."""
