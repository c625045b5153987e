"""Makes episodes of verifiers, which prime-rl trains on."""

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, GroupInfo, TrainRunInfo, TrainWorkInfo, WireEpisode
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, ModelCall, TraceTask, WireTrace
from verifiers.v1.types import AssistantMessage, Usage, UserMessage


def episode(name, group, rewards, weights, tokens):
    """Return an episode with one trace of one turn.

    Args:
        name: Its name, which is unique in the batch.
        group: Number of its group.
        rewards: Values by name. None: missing.
        weights: Weights by name.
        tokens: Tokens of its completion.
    """
    count = len(tokens)
    asked, said = UserMessage(content="p"), AssistantMessage(content="c")
    nodes = [
        MessageNode(parent=None, message=asked, token_ids=[1, 2], mask=[False] * 2, timestamp=0),
        MessageNode(
            parent=0,
            message=said,
            sampled=True,
            token_ids=[9, *tokens],
            mask=[False] + [True] * count,
            logprobs=[-0.5] * count,
            timestamp=0,
        ),
    ]
    usage = Usage(prompt_tokens=2, completion_tokens=count)
    call = ModelCall(node=1, finish_reason="stop", usage=usage)
    data = WireTaskData(idx=group, prompt="p")
    task = TraceTask(type="Add", data=data, key=f"k{group}", hash=f"h{group}")
    agent = AgentInfo(config=WireAgentConfig(), name="agent")
    trace = WireTrace(id=f"t{name}", task=task, agent=agent, nodes=nodes, calls=[call], ok=True)
    for reward, value in rewards.items():
        if value is None:
            trace.rewards[reward] = None
        else:
            trace.record_reward(reward, value, weights[reward])
    return WireEpisode(
        id=f"e{name}",
        env=EnvInfo(id="add", name="add"),
        task=task,
        group=GroupInfo(id=f"g{group}"),
        run=TrainRunInfo(id="r", work=TrainWorkInfo(step=1)),
        ok=True,
        traces=[trace],
    )
