"""Fig. 6 of Atlas, as the example that ships."""

import json
from pathlib import Path
from typing import Any

FIG6: dict[str, Any] = json.loads((Path(__file__).parents[2] / "examples/fig6.json").read_text())
