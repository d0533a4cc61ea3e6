"""`method: search`: routes over data centres, splits of the stages, and schedules, bounded first, then timed.

`problem` holds the request as arrays, `routes` and `splits` the candidates. `bound` bounds the time of a cell
and `cells` computes it. `solve` is the best-first search over all numbers of DP-cells, `excluded` gives
reasons. The design is docs/dev/search.md.
"""
