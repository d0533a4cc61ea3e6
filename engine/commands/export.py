"""`meridian export CHECKPOINT`: a checkpoint as a model that transformers loads."""

from pathlib import Path

import click

from engine.commands.printed import show
from engine.job.checkpoint.manifest import find


@click.command("export")
@click.argument("checkpoint")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new or empty folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a line of text.")
def command(checkpoint: str, out: Path, as_json: bool) -> int:
    """Write the model of a checkpoint as safetensors, config.json and tokenizer.

    CHECKPOINT is the path or URL of a checkpoint of `meridian train`, or of a folder of checkpoints (the
    newest is taken). transformers loads the result: AutoModelForCausalLM.from_pretrained(DIR).
    """
    from engine.train.export import export  # it imports torch, which the help does not need

    done = export(find(checkpoint, field="CHECKPOINT"), out)
    text = f"{done.architecture} of {done.parameters:,} parameters after step {done.step}: {done.out}"
    show(as_json, done.as_dict, lambda: [text])
    return 0
