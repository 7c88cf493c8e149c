"""Learning in a notebook: bars are widgets, and an interrupt of the kernel is safe."""

import importlib.util
import json
import os
import signal
import sys
import threading
import time

import pytest

from tiny_runs import TINY

NEEDED = ("nbclient", "nbformat", "ipykernel", "ipywidgets")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

CELL = """
import json, nacre
config, out = json.loads({config!r}), {out!r}
scenario = config.pop("scenario")
try:
    nacre.run(scenario, out, config=config)
except nacre.Interrupted as error:
    print(error)
"""


def interrupt(client, events):
    """Interrupt the kernel, as the button of a notebook does, once updates were made."""
    while not (events.exists() and '"train"' in events.read_text()):
        time.sleep(0.1)
    os.kill(client.km.provisioner.pid, signal.SIGINT)


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_notebook_draws_bars_and_can_be_interrupted(tmp_path, monkeypatch, is_interrupted):
    from nbclient import NotebookClient
    from nbformat import v4

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    epochs = 200 if is_interrupted else 2
    config = {**TINY, "train": {**TINY["train"], "epochs": epochs}}
    out = tmp_path / "run"
    cell = v4.new_code_cell(CELL.format(config=json.dumps(config), out=str(out)))
    client = NotebookClient(v4.new_notebook(cells=[cell]), timeout=280, kernel_name="python3")
    drawn: list[str] = []
    handle = client.process_message

    def note(message, cell, index):
        drawn.append(str(message["content"]))
        return handle(message, cell, index)

    client.process_message = note
    if is_interrupted:
        events = out / "events.jsonl"
        threading.Thread(target=interrupt, args=(client, events), daemon=True).start()
    client.execute()
    assert any("all steps" in text and "━" in text for text in drawn), "a bar was drawn"
    said = "".join(one.get("text", "") for one in cell.outputs)
    assert ("what was learned is saved" in said) == is_interrupted
    assert (out / "metrics.json").exists() != is_interrupted
    assert (out / "resume.safetensors").exists() == is_interrupted
