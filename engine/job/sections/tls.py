"""`tls` of a training job: the files with which its ranks prove who they are to each other."""

from typing import Annotated

from pydantic import Field

from engine.inputs import Document


class TlsSettings(Document):
    """PEM files on every node, by the same paths: its own certificate and key, and the authority of all."""

    certificate: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)]
    authority: Annotated[str, Field(min_length=1)]
