"""The policies by name: one line each."""

# policy → module of this package that ends in `policy = …`
MODULES = {
    "gpipe": "gpipe",
    "1f1b": "one_f_one_b",
    "varuna": "varuna",
    "atlas": "atlas",
    "interleaved": "interleaved",
    "zb-h1": "zb_h1",
    "zb-v": "zb_v",
    "crosspipe-ud": "crosspipe_ud",
    "crosspipe-udsub": "crosspipe_udsub",
    "crosspipe-loop": "crosspipe_loop",
    "crosspipe-wave": "crosspipe_wave",
    "optimal": "optimal",
    "auto": "auto",
}

# policy → the name that pages, tables and help show. Files, addresses and JSON hold the id.
NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "varuna": "Varuna",
    "atlas": "Atlas",
    "interleaved": "Interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "zb-v": "ZB-V",
    "crosspipe-ud": "CrossPipe, unidirectional",
    "crosspipe-udsub": "CrossPipe, unidirectional with sub-blocks",
    "crosspipe-loop": "CrossPipe, loop",
    "crosspipe-wave": "CrossPipe, wave",
    "optimal": "Optimal, by a solver",
    "auto": "Automatic",
}


def name_of(policy: str) -> str:
    """The name that people read of the policy with id `policy`; an id without a name stays as it is."""
    return NAMES.get(policy, policy)
