"""An evaluation of a policy beside another, as rows and lines that every view shows."""

from collections.abc import Sequence

from solrl_tasks.tracking.summary import Summary
from solrl_tasks.tracking.terminal import ABSENT, eval_names, value


def evaluation_rows(summary: Summary) -> list[dict[str, str]]:
    """A row for each reward: policy, reference, and their difference on the same prompts and seeds."""
    return [
        {
            "reward": name,
            "policy": value(summary, f"eval/{name}", 4),
            "reference": value(summary, f"compare/reference_{name}", 4),
            "difference": value(summary, f"eval/gain_{name}", 4),
            "95 % interval": _interval(summary, name),
            "better on": _share(summary, name),
        }
        for name in eval_names([summary])
    ]


def evaluation_lines(summary: Summary) -> list[str]:
    """What there is to say of the images and the adapter, a line each."""
    shown = {
        "diversity of a prompt's images": "policy/diversity",
        "its change against the reference": "policy/diversity_change",
        "distance to the reference's images": "policy/distance",
        "norm of the adapter": "policy/lora_norm",
    }
    return [f"{label}: {value(summary, name, 4)}" for label, name in shown.items() if name in summary.metrics]


def evaluation_page(summary: Summary) -> str:
    """The evaluation as markdown."""
    rows = evaluation_rows(summary)
    head = list(rows[0]) if rows else []
    table = [head, ["---"] * len(head), *(list(row.values()) for row in rows)]
    return "\n\n".join(
        [
            f"# {_plain(summary.run_id)}",
            *(_plain(note) for note in summary.notes),
            "± is one standard error over prompts; seeds of a prompt are averaged first.",
            "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in table),
            "\n".join(f"- {line}" for line in evaluation_lines(summary)),
        ]
    )


def _interval(summary: Summary, name: str) -> str:
    bounds = [summary.metrics.get(f"compare/{end}_{name}") for end in ("low", "high")]
    return ABSENT if None in bounds else " to ".join(f"{bound:.4f}" for bound in bounds)


def _share(summary: Summary, name: str) -> str:
    share = summary.metrics.get(f"compare/better_{name}")
    return ABSENT if share is None else f"{100 * share:.0f} % of prompts"


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def columns(rows: Sequence[dict[str, str]]) -> list[str]:
    """The headings of rows."""
    return list(rows[0]) if rows else []
