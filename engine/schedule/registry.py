"""The policies: one row each."""

# The id in files, addresses and JSON; the module of this package that ends in `policy = …`; the name that
# pages, tables and help show; and a sentence on what it does, for whoever chooses one.
ROWS = (
    ("gpipe", "gpipe", "GPipe", "all forward passes, then all backward passes."),
    ("1f1b", "one_f_one_b", "1F1B", "each stage alternates one forward and one backward pass."),
    (
        "varuna",
        "varuna",
        "Varuna",
        "each backward pass as soon as it can run, recomputed just in time.",
    ),
    ("atlas", "atlas", "Atlas", "as Varuna, but pipelines take turns on WAN links."),
    ("interleaved", "interleaved", "Interleaved 1F1B", "several model chunks per GPU, for shorter bubbles."),
    ("zb-h1", "zb_h1", "ZB-H1", "1F1B with weight gradients computed in the bubbles."),
    ("zb-v", "zb_v", "ZB-V", "two model chunks per GPU, weight gradients computed in the bubbles."),
    (
        "crosspipe-ud",
        "crosspipe_ud",
        "CrossPipe, unidirectional",
        "a greedy order that knows the links and the limits.",
    ),
    (
        "crosspipe-udsub",
        "crosspipe_udsub",
        "CrossPipe, unidirectional with sub-blocks",
        "as unidirectional, in smaller blocks.",
    ),
    (
        "crosspipe-loop",
        "crosspipe_loop",
        "CrossPipe, loop",
        "as unidirectional, several model chunks per GPU, in rounds.",
    ),
    (
        "crosspipe-wave",
        "crosspipe_wave",
        "CrossPipe, wave",
        "as unidirectional, several model chunks per GPU, out and back.",
    ),
    ("optimal", "optimal", "Optimal, by a solver", "proves the best order, for few stages and microbatches."),
    ("auto", "auto", "Automatic", "the fastest of all policies and of a search beyond them."),
)
SEARCHING = ("auto", "optimal")  # their answer may depend on the time that they have
MODULES = {policy: module for policy, module, _, _ in ROWS}
NAMES = {policy: name for policy, _, name, _ in ROWS}
SENTENCES = {policy: sentence for policy, _, _, sentence in ROWS}


def name_of(policy: str) -> str:
    """The display name of the policy with id `policy`; an unknown id is returned as it is."""
    return NAMES.get(policy, policy)
