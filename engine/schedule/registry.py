"""The policies: one line each."""

# The id in files, addresses and JSON; the module of this package that ends in `policy = …`; the name that
# pages, tables and help show.
ROWS = (
    ("gpipe", "gpipe", "GPipe"),
    ("1f1b", "one_f_one_b", "1F1B"),
    ("varuna", "varuna", "Varuna"),
    ("atlas", "atlas", "Atlas"),
    ("interleaved", "interleaved", "Interleaved 1F1B"),
    ("zb-h1", "zb_h1", "ZB-H1"),
    ("zb-v", "zb_v", "ZB-V"),
    ("crosspipe-ud", "crosspipe_ud", "CrossPipe, unidirectional"),
    ("crosspipe-udsub", "crosspipe_udsub", "CrossPipe, unidirectional with sub-blocks"),
    ("crosspipe-loop", "crosspipe_loop", "CrossPipe, loop"),
    ("crosspipe-wave", "crosspipe_wave", "CrossPipe, wave"),
    ("optimal", "optimal", "Optimal, by a solver"),
    ("auto", "auto", "Automatic"),
)
MODULES = {policy: module for policy, module, _ in ROWS}
NAMES = {policy: name for policy, _, name in ROWS}


def name_of(policy: str) -> str:
    """The display name of the policy with id `policy`; an unknown id is returned as it is."""
    return NAMES.get(policy, policy)
