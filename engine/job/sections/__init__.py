"""The sections of a training job's document, one a file: fields, their ranges and what follows from them."""
