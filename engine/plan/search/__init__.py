"""`method: search`: routes over data centres, splits of the stages, and schedules, bounded first, then timed.

`problem` holds the request as arrays, `routes` and `splits` the candidates, `bound` what a cell takes at
least, `cells` what it takes, `solve` the best-first search over all numbers of DP-cells, `excluded` why not.
The design is docs/dev/search.md.
"""
