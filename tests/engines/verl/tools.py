"""A tool that a random policy can learn to call, for verl's agent loop.

Each digit calls the tool, which ends the message. The tool pays more if the digit comes sooner.
"""

import json

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool

DIGITS = "0123456789"


@ToolParser.register("digits")
class Digits(ToolParser):
    @property
    def stop_token_ids(self):
        return self.tokenizer.convert_tokens_to_ids(list(DIGITS))

    async def extract_tool_calls(self, responses_ids, tools=None):
        message = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        if not message or message[-1] not in DIGITS:
            return message, []
        return message, [FunctionCall(name="press", arguments=json.dumps({"message": message}))]


@function_tool
def press(message: str):
    """Press the digit that ends the message.

    Args:
        message: The message of the model.
    """
    return "ok", 1 / len(message)
