"""Swap plans (ATOM): one model on one GPU that cannot hold it, sub-model by sub-model from the host.

The document is in `request`, the model as layers in `layers` and `profile`, the search for sub-models in
`partition`, the event model of a training step in `events`; `pipelines` and `fleet` compare and scale it;
`plan` joins them.
"""
