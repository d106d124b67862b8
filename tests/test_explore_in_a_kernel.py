"""An interactive figure in a live kernel, spoken to as a notebook's page does."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from attention_phases import _page
from jupyter_client.manager import start_new_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

CELL = """
from attention_phases import explore, figures

def draw(fig, omega):
    figures.theory(fig.subplots(), [0, 1], [0, omega], "semantic")
    return f"A line rises to {omega}."

explore.show(draw, "slope", omega=[0.0, 0.5, 1.0])
"""


class Front:
    """What a notebook's page knows of a kernel: the state of each widget, and what was sent, by kind of message."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.widgets: dict[str, dict[str, Any]] = {}
        self.sent: list[str] = []

    def listen(self, message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        self.sent.append(kind)
        if kind == "comm_open":
            self.widgets[content["comm_id"]] = content["data"]["state"]
        elif kind == "comm_msg" and content["data"]["method"] == "update":
            self.widgets[content["comm_id"]].update(content["data"]["state"])
        elif kind == "error":
            pytest.fail("\n".join(content["traceback"]))

    def execute(self, code: str) -> None:
        self.client.execute_interactive(code, timeout=60, output_hook=self.listen)

    def move(self, widget: str, **state: Any) -> None:
        """Send a widget's new state, as a page does when its reader moves it, and listen until all is done."""
        data = {"method": "update", "state": state, "buffer_paths": []}
        request = self.client.session.msg("comm_msg", {"comm_id": widget, "data": data})
        self.client.shell_channel.send(request)
        idle = False
        while not idle:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                self.listen(message)
                idle = message["content"].get("execution_state") == "idle"

    def named(self, model: str) -> str:
        (found,) = [name for name, state in self.widgets.items() if state["_model_name"] == model]
        return found


@pytest.fixture
def front() -> Iterator[Front]:
    environment = {name: value for name, value in os.environ.items() if name != _page.STATIC}
    manager, client = start_new_kernel(kernel_name="python3", env=environment)
    yield Front(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_slider_computes_anew_and_redraws_the_same_figure_in_place(front: Front) -> None:
    front.execute(CELL)
    slider, frame = front.named("SelectionSliderModel"), front.named("HTMLModel")
    assert list(front.widgets[slider]["_options_labels"]) == ["0", "0.5", "1"]
    first = front.widgets[frame]["value"]
    assert 'alt="A line rises to 0.0."' in first

    shown, known = front.sent.count("display_data") + front.sent.count("execute_result"), set(front.widgets)
    front.move(slider, index=2)
    second = front.widgets[frame]["value"]
    assert 'alt="A line rises to 1.0."' in second
    assert picture(second) != picture(first)
    assert front.sent.count("display_data") + front.sent.count("execute_result") == shown  # no second figure
    assert set(front.widgets) == known  # and no new widget

    front.move(slider, index=0)
    assert picture(front.widgets[frame]["value"]) == picture(first)


def picture(value: str) -> str:
    (source,) = re.findall(r'<img [^>]*src="(data:[^"]*)"', value)
    return str(source)
