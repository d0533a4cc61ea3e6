"""Checkpoints by layer, in a local folder or at any fsspec URL.

A checkpoint is a folder `step-<n>-<nonce>` with one safetensors file per layer (weights and AdamW's moments)
and `manifest.json`, which is written last: a folder without it is none. As a layer's file knows nothing of
stages, a run may resume with other stages, data centres, pipelines or another policy.
"""
