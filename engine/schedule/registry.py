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
