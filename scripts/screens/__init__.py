"""Pictures of every page: 1440 and 390 px wide, light and dark, of four sites (see `sites.STATES`).

`python -m scripts.screens --help` says how. Pages come from the URL resolver (through tests/site/access.py,
which a test keeps complete); the situations of the fourth site from `cases.CASES`.
"""
